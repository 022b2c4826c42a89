"""Other versions of Django, each in an environment of its own, made when a test needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NEEDED = ("psycopg[binary]>=3.2", "cronsim", "django-admin-rangefilter")
NEWER = ("3.13", "3.12", "3.14")  # Django 6 needs 3.12


def newer_python() -> str:
    """A Python that Django 6 runs on; the test is skipped, loudly, where there is none."""
    for candidate in _candidates():
        asked = [candidate, "-c", "import sys; assert sys.version_info >= (3, 12); print(sys.executable)"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            continue  # a shim of a version that is not switched on
        return found.stdout.strip()
    pytest.skip(f"needs Python {' or '.join(NEWER)}, on PATH or by pyenv, for Django 6")


def _candidates() -> Iterator[str]:
    yield sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in NEWER:
        if found := shutil.which(f"python{version}"):
            yield found
        yield from map(str, sorted(pyenv.glob(f"{version}*/bin/python{version}"), reverse=True))


def environment(folder: Path, django: str) -> str:
    """The Python of a new environment with this Django (``"6.0"``) and what django_jobqueue needs."""
    python, wanted = folder / "bin" / "python", [f"Django~={django}.0", *NEEDED]
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        _run(uv, "venv", "--quiet", "--python", newer_python(), str(folder))
        _run(uv, "pip", "install", "--quiet", "--python", str(python), *wanted)
    else:
        _run(newer_python(), "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", *wanted)
    return str(python)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"


def ask(python: str, dsn: str, *arguments: str) -> str:
    """What this Python says to these arguments, in a project with our tests' tasks."""
    done = subprocess.run(
        [python, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "tests.tasks.settings",
            "JOBQUEUE_TEST_DSN": dsn,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{arguments} failed:\n{done.stdout}{done.stderr}"
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
