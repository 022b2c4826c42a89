"""The code tour names every package, and each file and function that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "django_jobqueue"
TOUR = (ROOT / "docs" / "explanation" / "code-tour.md").read_text()
ITEM = re.compile(r"^\d+\. `([\w/]+\.py)`(.*?)(?=^\d+\. |^#|^\||\n\n|\Z)", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`([A-Za-z_][\w.]*)`")
ROW = re.compile(r"^\| `([\w/.]+)`", re.MULTILINE)


def items() -> list[tuple[str, list[str]]]:
    """Each step of a walk: its file, and the names of which it says that they are there."""
    return [(file, NAME.findall(text.partition(":")[0])) for file, text in ITEM.findall(TOUR)]


def names_in(path: Path) -> set[str]:
    """The functions, classes, methods and constants of a module."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            names.update(f"{node.name}.{method.name}" for method in methods)
        if isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


@pytest.mark.parametrize("file", sorted({file for file, _ in items()}))
def test_each_step_names_what_exists(file):
    path = PACKAGE / file
    assert path.is_file()
    named = {name for of, names in items() if of == file for name in names}
    assert named <= names_in(path)


def test_each_step_names_a_function():
    assert [file for file, names in items() if not names] == []


def test_the_tour_shows_the_walks_that_a_reader_looks_for():
    titles = re.findall(r"^### (.+)$", TOUR, re.MULTILINE)
    assert titles == [
        "A job is sent",
        "A file is sent in bulk",
        "A worker fetches from a lane",
        "A handler fails",
        "An operator skips a job",
        "An operator redrives dead letters",
        "A schedule sends the job of a slot",
        "A child process is killed",
        "Finished jobs are archived",
    ]


def test_every_package_and_module_has_a_row():
    shown = {name.removesuffix("/") for name in ROW.findall(TOUR)}
    assert shown == {path.name for path in PACKAGE.iterdir()} - {"__init__.py", "__pycache__"}


def test_it_counts_the_files_of_two_walks():
    said = re.search(r"passes through (\d+) files,.*?through (\d+)\.", TOUR, re.DOTALL)
    assert said is not None

    claimed, killed = (
        {file for file, _ in ITEM.findall(TOUR.partition(f"### {title}\n")[2].partition("\n### ")[0])}
        for title in ("A worker fetches from a lane", "A child process is killed")
    )

    assert [len(claimed), len(killed)] == [int(number) for number in said.groups()]
