"""What is installed, and what an import brings along."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "django_jobqueue"
OPTIONAL = {
    "adbc_driver_postgresql", "factory", "opentelemetry", "prometheus_client", "pyarrow", "pyspark", "pytest",
    "sentry_sdk",
}  # fmt: skip
IMPORT = """
import json, sys
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_jobqueue"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}},
)
import django, django_jobqueue
django.setup()
from django_jobqueue import handlers, job, services, testing
from django_jobqueue.worker import work
import django_jobqueue.tasks
handlers.autodiscover()
print(json.dumps(sorted(sys.modules)))
"""


def test_importing_the_package_imports_nothing_that_is_optional():
    done = subprocess.run([sys.executable, "-c", IMPORT], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    assert "django_jobqueue.services.send" in modules
    assert not OPTIONAL & {module.split(".")[0] for module in modules}
    unwanted = (
        "django.contrib.admin",
        "django_jobqueue.admin",
        "django_jobqueue.pipeline",
        "django_jobqueue.prometheus",
    )
    assert not [module for module in modules if module.startswith(unwanted)]


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        there = set(packed.namelist())
        (metadata,) = [packed.read(name).decode() for name in there if name.endswith(".dist-info/METADATA")]
        (entry_points,) = [name for name in there if name.endswith("entry_points.txt")]
        assert "jobqueue = django_jobqueue.testing.plugin" in packed.read(entry_points).decode()
    urls = {line.split(": ")[1].split(",")[0] for line in metadata.splitlines() if line.startswith("Project-URL: ")}
    assert urls == {"Documentation", "Source", "Changelog", "Issues"}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    missing = {path.relative_to(ROOT).as_posix() for path in files} - there
    assert not missing
    assert {"django_jobqueue/py.typed", "django_jobqueue/migrations/0001_initial.py"} <= there
    assert not [name for name in there if name.startswith(("tests/", "example_project/"))]
