"""The tutorial as a new user goes through it: an empty folder, the built wheel, its lines pasted as they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial" / "five-steps.md"
FILE = re.compile(
    r"^<!-- file: (?P<path>\S+) -->\n<!-- no-run -->\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMANDS = re.compile(r"^```console\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_STEPS, MOST_LINES = 5, 7
DATABASE = "shop"


def steps() -> list[str]:
    """The numbered sections, in order."""
    found = re.split(r"^## (?=\d\. )", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return [re.split(r"^## ", step, maxsplit=1, flags=re.MULTILINE)[0] for step in found]


def commands(step: str) -> list[str]:
    lines = [line for match in COMMANDS.finditer(step) for line in match["lines"].splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]


def test_it_takes_five_steps_and_seven_lines_of_code():
    files = [match["code"] for step in steps() for match in FILE.finditer(step)]
    sends = [line for step in steps() for line in commands(step) if "shell -c" in line]

    assert len(steps()) <= MOST_STEPS
    assert len([line for code in files for line in code.splitlines() if line.strip()]) + len(sends) <= MOST_LINES


@pytest.fixture
def server() -> Iterator[dict[str, str]]:
    """libpq's variables of a server with an empty database of that name."""
    given = connection.settings_dict
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        cursor.execute(f"CREATE DATABASE {DATABASE}")
    named = {"PGHOST": "HOST", "PGPORT": "PORT", "PGUSER": "USER", "PGPASSWORD": "PASSWORD"}
    yield {name: str(given[key]) for name, key in named.items() if given[key]}
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_new_user_s_first_job_is_done(tmp_path, server):
    run(f"{sys.executable} -m hatchling build -t wheel -d {tmp_path / 'dist'}", ROOT, dict(os.environ))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    folder, venv = tmp_path / "project", tmp_path / "venv"
    folder.mkdir()
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    install = f"{uv} pip install --quiet" if uv else "pip install --quiet"
    run(
        f"{uv} venv --quiet --python {sys.executable} {venv}" if uv else f"{sys.executable} -m venv {venv}",
        folder,
        dict(os.environ),
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "DJANGO_", "JOBQUEUE_"))}
    environment = {**kept, **server, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(venv)}

    said = ""
    for step in steps():
        for match in FILE.finditer(step):
            path = folder / match["path"]
            path.write_text((path.read_text() if path.exists() else "") + match["code"])
        for command in commands(step):
            pasted = command.replace("pip install", install, 1).replace("django-jobqueue", str(wheel), 1)
            said = run(pasted if command.startswith("pip ") else command, folder, environment)

    assert "completed" in said
    assert "shop.jobs.greet" in said
