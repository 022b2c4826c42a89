"""The tutorial as a new user goes through it: an empty folder, the built wheel, its lines pasted as they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fresh_install import Installation, build_wheel, empty_databases

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial" / "five-steps.md"
FILE = re.compile(
    r"^<!-- file: (?P<path>\S+) -->\n<!-- no-run -->\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMANDS = re.compile(r"^```console\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGING = re.compile(
    r"\(Django [^)]*\)|(?<=worker )\S+|(?<=started: )\S+ pid \d+|(?<=stopped: )[^,]+|(?<=shop on ).*"  # where it runs
    r"|[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[\d.]+ m?s\b|\d+/s"  # when, and how fast
)
MOST_STEPS, MOST_LINES = 5, 7
DATABASE = "shop"


def steps() -> list[str]:
    """The numbered sections, in order."""
    found = re.split(r"^## (?=\d\. )", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return [re.split(r"^## ", step, maxsplit=1, flags=re.MULTILINE)[0] for step in found]


def commands(step: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a step, each with the lines that the page shows below it."""
    for block in COMMANDS.finditer(step):
        for pasted in block["lines"].split("$ ")[1:]:
            command, *shown = pasted.splitlines()
            yield command, [line for line in shown if line]


def changing(line: str) -> str:
    """A line in which ids, times and durations, which differ between runs, are replaced."""
    return " ".join(CHANGING.sub("*", line).split())


def test_it_takes_five_steps_and_seven_lines_of_code():
    files = [match["code"] for step in steps() for match in FILE.finditer(step)]
    sends = [command for step in steps() for command, _ in commands(step) if "shell -c" in command]

    assert len(steps()) <= MOST_STEPS
    assert len([line for code in files for line in code.splitlines() if line.strip()]) + len(sends) <= MOST_LINES


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_new_user_s_first_job_is_done(tmp_path):
    """Every line is pasted into a terminal, whose last screens are those that the page shows."""
    with empty_databases(DATABASE) as server:
        project = Installation.create(tmp_path / "venv", tmp_path / "project", server)
        wheel, compared = build_wheel(tmp_path / "dist"), 0
        for step in steps():
            for match in FILE.finditer(step):
                path = project.folder / match["path"]
                path.write_text((path.read_text() if path.exists() else "") + match["code"])
            for command, shown in commands(step):
                if command.startswith("pip install "):
                    named = shlex.split(command.removeprefix("pip install "))
                    project.install(*(str(wheel) if name == "django-jobqueue" else name for name in named))
                else:
                    screen = project.screen("sh", "-c", command, columns=200)
                    if shown:
                        assert [changing(line) for line in screen] == [changing(line) for line in shown]
                        compared += 1

    assert compared >= 2  # the worker's and the list of jobs
