"""What mypy and pyright say about a project that uses this package: every error meant, no other, and the types."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
PROJECT = Path(__file__).parent / "project"
REVEALED = re.compile(r'(?:Revealed type is|Type of ".*" is) "(?P<type>.*)"', re.DOTALL)
QUALIFIED = re.compile(r"\b(?:\w+\.)+(?=\w)")

MYPY = """
[mypy]
strict = True
plugins = mypy_django_plugin.main
[mypy.plugins.django-stubs]
django_settings_module = settings
"""


class Line(NamedTuple):
    file: str
    number: int


class Said(NamedTuple):
    """What a checker says: the lines of errors, and the types that it reveals."""

    errors: dict[Line, str]
    types: dict[Line, str]


def expected() -> Said:
    errors: dict[Line, str] = {}
    types: dict[Line, str] = {}
    for path in sorted(PROJECT.rglob("*.py")):
        for number, text in enumerate(path.read_text().splitlines(), start=1):
            line = Line(str(path.relative_to(PROJECT)), number)
            if text.endswith("# error"):
                errors[line] = text.strip()
            elif "  # is: " in text:
                types[line] = text.rpartition("  # is: ")[2]
    return Said(errors, types)


def said(messages: list[tuple[Line, bool, str]]) -> Said:
    errors: dict[Line, str] = {}
    types: dict[Line, str] = {}
    for line, is_error, text in messages:
        if found := REVEALED.search(text):
            types[line] = QUALIFIED.sub("", found["type"])
        elif is_error:
            errors[line] = text
    return Said(errors, types)


def by_mypy(project: Path) -> Said:
    (project / "mypy.ini").write_text(MYPY)
    cache = ROOT / ".mypy_cache" / "typed_project"
    command = [sys.executable, "-m", "mypy", "--output", "json", "--cache-dir", str(cache), "shop"]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    return said([(Line(one["file"], one["line"]), one["severity"] == "error", one["message"]) for one in found])


def by_pyright(project: Path) -> Said:
    (project / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "shop"]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    found = json.loads(run.stdout)["generalDiagnostics"]
    return said([(place(one, project), one["severity"] == "error", one["message"]) for one in found])


def place(diagnostic: Any, project: Path) -> Line:
    file = Path(diagnostic["file"]).resolve().relative_to(project.resolve())
    return Line(str(file), diagnostic["range"]["start"]["line"] + 1)


@pytest.mark.slow
@pytest.mark.parametrize("checked", (by_mypy, by_pyright))
def test_type_checkers_find_what_is_wrong_and_nothing_else(tmp_path: Path, checked: Callable[[Path], Said]):
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    meant = expected()
    assert len(meant.errors) > 20
    assert len(meant.types) > 30

    found = checked(project)

    wrong = {line: text for line, text in found.errors.items() if line not in meant.errors}
    assert wrong == {}, "errors in what is right"
    assert {line: text for line, text in meant.errors.items() if line not in found.errors} == {}, "not found"
    assert {line: found.types.get(line) for line in meant.types} == meant.types
