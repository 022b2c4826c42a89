"""Which tests cite the numbers of ``docs/reference/requirements.toml``, and the page that lists both.

A comment cites for the test that it stands in, or else for the next test below. A line of dashes cites for all tests up
to the next line of dashes, the docstring of a module for all its tests.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
DATA = ROOT / "docs" / "reference" / "requirements.toml"
PAGE = DATA.with_suffix(".md")

NUMBER = re.compile(r"\b(?:R\d{3}|[BFGI][1-9]\d?)\b")
RANGE = re.compile(r"\b([BFGIR])(\d+)-\1(\d+)\b")
DASHES = "# ---"
SHOWN = 3  # tests of a number on the page


@dataclass(frozen=True, slots=True)
class Requirements:
    intro: str
    chapters: Mapping[str, Mapping[str, str]]  # title → number → sentence
    pages: Mapping[str, list[str]]  # duties of the documentation, with the pages that fulfil them
    untested: list[str]

    @property
    def numbers(self) -> list[str]:
        return [number for sentences in self.chapters.values() for number in sentences]


def read_requirements() -> Requirements:
    return Requirements(**tomllib.loads(DATA.read_text()))


def numbers_in(text: str) -> Iterator[str]:
    """The numbers in a text, and those that a range such as R045-R048 covers."""
    for letter, first, last in RANGE.findall(text):
        yield from (f"{letter}{number:0{len(first)}}" for number in range(int(first) + 1, int(last)))
    yield from NUMBER.findall(text)


@cache
def proofs() -> Mapping[str, list[str]]:
    """The tests that cite each number, as paths below ``tests/``."""
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text()
        if not NUMBER.search(source):
            continue
        for number, test in citations(source, str(path.relative_to(TESTS))):
            if test not in tests[number]:
                tests[number].append(test)
    return tests


def places_by_number(folders: tuple[str, ...]) -> dict[str, list[str]]:
    """The files in which comments and docstrings of Python code name a number."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        if not NUMBER.search(source):
            continue
        texts = [text for _, text in comments(source)] + docstrings(source)
        for number in {number for text in texts for number in numbers_in(text)}:
            places[number].append(str(path.relative_to(ROOT)))
    return places


def page() -> str:
    """The page as it should be."""
    requirements, tests = read_requirements(), proofs()
    parts = ["# Requirements", requirements.intro.strip()]
    for title, sentences in requirements.chapters.items():
        rows = ["| Number | What holds, and the proof |", "| --- | --- |"]
        for number, sentence in sentences.items():
            pages = [f"[{page}](../{page})" for page in requirements.pages.get(number, ())]
            proof = pages + _shown(tests.get(number, [])) or ["No test yet"]
            rows.append(f"| [{number}]{{#{number.lower()}}} | {'<br>'.join([sentence, *proof])} |")
        parts += [f"## {title}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


@cache
def comments(source: str) -> list[tuple[int, str]]:
    """The comments of Python code with their lines."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def docstrings(source: str) -> list[str]:
    nodes = ast.walk(ast.parse(source))
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [text for node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))]


def _shown(tests: list[str]) -> list[str]:
    """The first tests, and how many more there are."""
    more = len(tests) - SHOWN
    return [f"`{test}`" for test in tests[:SHOWN]] + ([f"and {more} more"] if more > 0 else [])


def citations(source: str, name: str) -> Iterator[tuple[str, str]]:
    """Numbers that a module of tests cites, each with the test that proves it."""
    module = ast.parse(source)
    yield from ((number, name) for number in numbers_in(ast.get_docstring(module) or ""))
    tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    sections = [line for line, text in comments(source) if text.startswith(DASHES)]
    for line, text in comments(source):
        below = [test for test in tests if (test.end_lineno or 0) >= line]
        if line in sections:
            end = min((other for other in sections if other > line), default=len(source))
            cited = [test for test in below if test.lineno < end]
        else:
            cited = below[:1]
        yield from ((number, f"{name}::{test.name}") for number in numbers_in(text) for test in cited)
