"""A copy of the project, a server and a database of their own: where marked and mutated modules are tested."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest

from example_project.postgres import Server

from . import recorder
from .sources import Mutant, marked, mutated

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "django_jobqueue"
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "_build", "build", "dist", "spark-warehouse", "lake")
DATABASE, TEMPLATE = "test_jobqueue", "mutants_template"  # the first is of tests.settings
CHOSEN = "not slow and not faults and not spark and not browser"

KILLED, SURVIVED, INVALID, NOT_RUN = "killed", "survived", "invalid", "not run"
# The server refused the text itself, so no test has judged what it does.
_REFUSED = re.compile(
    r"psycopg\.errors\.(SyntaxError|Undefined\w+|Ambiguous\w+|Indeterminate\w+|DatatypeMismatch|GroupingError"
    r"|InvalidColumnReference|CannotCoerce)\b|psycopg\.ProgrammingError"
)
_STARTING_SECONDS = 60.0  # of pytest, with collecting
_OURS = {PACKAGE, "tests", "example_project"}
_THIRD_PARTIES = (
    "django.core.management", "django.contrib.admin", "django.contrib.postgres.indexes", "django.db.models",
    "django.db.backends.postgresql.base", "django.forms", "django.test", "django.test.client", "django.urls",
    "django.views.debug", "django.contrib.admin.options", "django.contrib.admin.sites", "django.contrib.admin.checks",
    "psycopg", "psycopg.types.json", "factory", "factory.django", "faker", "hypothesis", "hypothesis.stateful",
    "hypothesis.strategies", "pytest_django.plugin", "pytest_django.fixtures", "xdist.plugin", "xdist.looponfail",
    "cronsim", "asyncio", "multiprocessing", "concurrent.futures", "html.parser", "email.message",
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """What one test did when nothing was mutated."""

    test: str
    seconds: float
    passed: bool
    marks: frozenset[str]


@dataclass(frozen=True)
class Verdict:
    key: str
    verdict: str
    by: str  # the test that failed
    tests: int
    seconds: float


class Sandbox:
    def __init__(self, folder: Path, server: Server) -> None:
        self.tree = folder / "tree"
        self.record = folder / "record.jsonl"
        self.output = folder / "output.txt"
        self.server = server
        shutil.rmtree(self.tree, ignore_errors=True)
        shutil.copytree(ROOT, self.tree, ignore=NOT_COPIED)

    def prepare(self) -> None:
        """Make the database that each run begins with."""
        self._pytest(["--create-db", "tests/test_factories.py"], 300)
        with self._postgres() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {TEMPLATE} WITH (FORCE)")
            connection.execute(f"ALTER DATABASE {DATABASE} RENAME TO {TEMPLATE}")

    def record_marks(self, mutants: Iterable[Mutant], tests: list[str]) -> None:
        """Run these tests with marked modules, and append what each did."""
        self._fresh_database()
        with self._postgres() as connection:
            connection.execute(f"ALTER DATABASE {DATABASE} SET log_statement = 'all'")
        by_path: dict[str, list[Mutant]] = {}
        for mutant in mutants:
            by_path.setdefault(mutant.path, []).append(mutant)
        with ExitStack() as rewritten:
            for path, of_path in by_path.items():
                rewritten.enter_context(self._rewritten(path, partial(marked, mutants=of_path)))
            paths = {recorder.LOG: str(self.server.log), recorder.RECORD: str(self.record)}
            self._pytest(["-p", recorder.__name__, "-m", CHOSEN, *tests], None, paths)

    def judge(self, mutant: Mutant, tests: list[Recorded]) -> Verdict:
        """Whether one of these tests fails with this mutant."""
        self._fresh_database()
        listed = self.tree / "chosen.txt"
        listed.write_text("\n".join(test.test for test in tests))
        began = time.monotonic()
        limit = _STARTING_SECONDS + 4 * sum(test.seconds for test in tests)
        with self._rewritten(mutant.path, partial(mutated, mutant=mutant)):
            status, output = self._pytest(["-x", f"@{listed}"], limit)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        by = failed.group(1) if failed else ("time limit" if status is None else "")
        return Verdict(mutant.key, _verdict(status, output), by, len(tests), round(time.monotonic() - began, 1))

    @contextmanager
    def _rewritten(self, path: str, change: Callable[[str], str]) -> Iterator[None]:
        original = (self.tree / path).read_text()
        (self.tree / path).write_text(change(original))
        try:
            yield
        finally:
            (self.tree / path).write_text(original)

    def _pytest(
        self, arguments: list[str], limit: float | None, environment: dict[str, str] | None = None
    ) -> tuple[int | None, str]:
        """The exit status and the output; no status if it took too long.

        In a fork of this process, because to import pytest and Django again takes longer than most runs.
        """
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "--reuse-db"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported already
        ours = {"JOBQUEUE_TEST_DSN": self.server.dsn, "PYTHONPATH": str(self.tree), **(environment or {})}
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _run_here(self.tree, self.output, ours, [*options, *arguments])
        status = _wait(pid, limit)
        output = self.output.read_text(errors="replace")
        if status not in (0, 1, None):
            raise RuntimeError(f"pytest ended with {status}:\n{output[-4000:]}")
        return status, output

    def _postgres(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.server.dsn, autocommit=True)

    def _fresh_database(self) -> None:
        """As it was, whatever the run before has left: it may have been stopped in the middle of a test."""
        with self._postgres() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {TEMPLATE}")


def read_record(path: Path) -> list[Recorded]:
    """What was recorded last of each test."""
    if not path.exists():
        return []
    lines = (json.loads(line) for line in path.read_text().splitlines())
    newest = {line["test"]: line for line in lines}
    return [Recorded(**{**line, "marks": frozenset(line["marks"])}) for line in newest.values()]


def chosen(mutant: Mutant, record: Iterable[Recorded], seconds: float) -> list[Recorded]:
    """The tests that send what is mutated: first the quick ones that do little else, and no more than fit."""
    sending = [test for test in record if test.passed and mutant.key in test.marks]
    sending.sort(key=lambda test: (test.seconds + 0.02) * len(test.marks))
    taken: list[Recorded] = []
    for test in sending:
        if seconds <= 0:
            break
        taken.append(test)
        seconds -= test.seconds
    return taken


def import_third_parties() -> None:
    """What the tests import that is not ours, as far as it can be without settings."""
    for name in _THIRD_PARTIES:
        with suppress(Exception):
            importlib.import_module(name)


def _run_here(tree: Path, output: Path, environment: dict[str, str], arguments: list[str]) -> NoReturn:
    """Become a process that runs pytest in the copy, and end."""
    status = 1
    try:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(tree)
        os.environ.update(environment)
        sys.path[:] = [str(tree), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
            del sys.modules[name]
        status = int(pytest.main(arguments))
        sys.stdout.flush()
    finally:
        os._exit(status)


def _wait(pid: int, limit: float | None) -> int | None:
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        ended, status = os.waitpid(pid, 0 if deadline is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if deadline is not None and time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.02)


def _verdict(status: int | None, output: str) -> str:
    if status == 0:
        return SURVIVED
    return INVALID if status is not None and _REFUSED.search(output) else KILLED
