"""Sphinx configuration. Pages are found by the toctree of their folder's index."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import django
from django.conf import settings

ROOT = Path(__file__).parent.parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "django_jobqueue" / "__init__.py").read_text())
assert VERSION is not None

# autodoc imports the package for its docstrings, so Django must be set up. No database server is needed.
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_jobqueue"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "docs"}},
)
django.setup()

project = "django-jobqueue"
author = "django-jobqueue contributors"
project_copyright = author
release = version = VERSION[1]

extensions = ["myst_parser", "sphinx.ext.autodoc", "model_columns"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["requirements.css"]
html_title = f"django-jobqueue {release}"
