"""Log messages: constant templates, fields that do not clash, and a page that lists all of them."""

from __future__ import annotations

import ast
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import django_jobqueue
from django_jobqueue.log_texts import LOGGERS, MAX_ERROR_CHARS, SecretFree, error_line, job_label, one_line
from django_jobqueue.models import Job

PACKAGE = Path(django_jobqueue.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "logging.md"
LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
OF_A_RECORD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Call(NamedTuple):
    """A call of a logger."""

    place: str
    logger: str
    level: str
    template: str
    fields: frozenset[str]


def calls() -> Iterator[Call]:
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = dict(_loggers(tree))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and (owner := _owner(node)).endswith("logger"):
                        place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                        assert isinstance(node.func, ast.Attribute)
                        # A logger that is imported is that of the package.
                        logger = names.get(owner, "django_jobqueue")
                        level = LEVELS[node.func.attr]
                        yield Call(place, logger, level, _template(node, place), _fields(node, function, place))


def _loggers(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("logging.getLogger("):
            assert isinstance(node.value, ast.Call)
            yield ast.unparse(node.targets[0]), ast.literal_eval(node.value.args[0])


def _owner(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute) and node.func.attr in {*LEVELS, "log", "critical"}:
        return ast.unparse(node.func.value)
    return ""


def _template(node: ast.Call, place: str) -> str:
    template = node.args[0]
    assert isinstance(template, ast.Constant), f"{place}: the template must be constant"
    assert isinstance(template.value, str)
    return template.value


def _fields(node: ast.Call, function: ast.AST, place: str) -> frozenset[str]:
    """The keys of ``extra``: of a dict written there, or assigned to a name in the same function."""
    extra = next((keyword.value for keyword in node.keywords if keyword.arg == "extra"), None)
    assert extra is not None, f"{place}: no extra fields"
    if isinstance(extra, ast.Name):
        name = extra.id
        (extra,) = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name
        ]
    assert isinstance(extra, ast.Dict), place
    return frozenset(ast.literal_eval(key) for key in extra.keys if key is not None)


ALL = sorted(set(calls()))


class Row(NamedTuple):
    """A row of the page."""

    levels: frozenset[str]
    fields: frozenset[str]


def rows() -> dict[tuple[str, str], Row]:
    """The rows of the page, by logger and template."""
    found: dict[tuple[str, str], Row] = {}
    logger, before = "", frozenset[str]()
    for line in PAGE.read_text().splitlines():
        if heading := re.match(r"## `([\w.]+)`", line):
            logger = heading[1]
        parts = [part.strip() for part in line.strip("|").split(" | ")]
        if not logger or len(parts) != 4 or "<br>" not in parts[1]:
            continue
        template, fields = parts[1].split("<br>")
        before = before if fields == "the same fields" else frozenset(re.findall(r"`(\w+)`", fields))
        key = logger, template.strip("`")
        assert key not in found, f"twice on the page: {key}"
        found[key] = Row(frozenset(re.findall(r"`(\w+)`", parts[0])), before)
    return found


def test_the_page_lists_every_message_with_its_level_and_fields():
    levels, fields = defaultdict[tuple[str, str], set[str]](set), defaultdict[tuple[str, str], set[str]](set)
    for call in ALL:
        levels[call.logger, call.template].add(call.level)
        fields[call.logger, call.template] |= call.fields

    assert rows() == {key: Row(frozenset(levels[key]), frozenset(fields[key])) for key in levels}


@pytest.mark.parametrize("call", ALL, ids=lambda call: call.template)
def test_a_message_is_one_plain_line_with_fields_that_do_not_clash(call):
    assert "\n" not in call.template
    assert not call.template.endswith(".")
    assert call.template[0].islower()
    assert not call.fields & OF_A_RECORD


@pytest.mark.parametrize(
    ("error", "line"),
    (
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ValueError("duplicate key\nDETAIL: Key (email)=(finn@example.com)"), "ValueError: duplicate key"),
        ("a text\nof two lines", "a text"),
        ("\x1b[31mred", "\N{REPLACEMENT CHARACTER}[31mred"),
        ("", ""),
    ),
)
def test_an_error_is_written_in_one_line(error, line):
    assert error_line(error) == line


def test_a_long_error_is_cut():
    assert len(one_line("x" * 10_000)) == MAX_ERROR_CHARS


def test_an_error_whose_text_raises_is_still_written():
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_line(Broken()).startswith("Broken: ")


@pytest.mark.parametrize(
    ("columns", "seq", "label"),
    (
        ({"queue_id": "orders", "seq": 264, "name": "ship", "singleton_key": "a"}, None, "orders #264 ship key=a"),
        ({"queue_id": "orders", "id": 7, "name": "", "singleton_key": ""}, None, "orders 7"),
        ({"queue_id": "orders", "id": 7}, 264, "orders #264"),
    ),
)
def test_a_job_is_named_without_reading_the_database(columns, seq, label):
    job = Job.from_row("default", list(columns), list(columns.values()))

    assert job_label(job, seq) == label


def test_every_logger_hides_secrets_in_tracebacks():
    assert {call.logger for call in calls()} <= set(LOGGERS)
    assert all(any(isinstance(one, SecretFree) for one in logging.getLogger(name).filters) for name in LOGGERS)
