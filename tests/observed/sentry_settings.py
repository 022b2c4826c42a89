"""Settings of a project that reports to Sentry as the documentation says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.observed.app"]
_page = (Path(__file__).parent.parent.parent / "docs" / "howto" / "sentry.md").read_text()
_setup, _jobqueue = re.findall(r"^```python\n(.*?)^```$", _page, re.MULTILINE | re.DOTALL)[:2]
exec(_setup.replace('"https://key@sentry.example.com/1"', "os.environ['SENTRY_DSN']").replace("=0.1", "=1"), {"os": os})
exec(_jobqueue)
