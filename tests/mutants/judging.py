"""A pytest plugin that runs the tests of one mutant after the other, each in a fork of a process that has imported all.

The SQL is marked (see ``sources``), and cut when it is sent to the server; a function gets its changed code in the fork
(see ``changing``). So nothing has to be imported or collected again, and a mutant takes as long as its tests. Programs
that a test starts are not mutated.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psycopg
import pytest
from django.db import connections
from psycopg.conninfo import make_conninfo

from . import changing, sources
from .changing import CodeMutant, put_in_place
from .cutting import FOR_UPDATE, SKIP_LOCKED
from .sources import SqlMutant, marks_in, mutated

Mutant = SqlMutant | CodeMutant

OPTIONS = "MUTANTS_OPTIONS"
KILLED, SURVIVED, INVALID, NOT_RUN = "killed", "survived", "invalid", "not run"
TEMPLATE = "mutants_template"
CHOSEN = "not slow and not faults and not spark and not browser"

# The server refused the text itself, so no test has judged what it does.
_REFUSED = re.compile(
    r"psycopg\.errors\.(SyntaxError|Undefined\w+|Ambiguous\w+|Indeterminate\w+|DatatypeMismatch|GroupingError"
    r"|InvalidColumnReference|CannotCoerce)\b|psycopg\.ProgrammingError"
)
_NAMED = re.compile(r"(PREPARE|EXECUTE) (\w+)")
_SPARE_SECONDS = 30.0
_SPARE_SECONDS_OF_A_TEST = 15


@dataclass(frozen=True)
class Options:
    """What the program asks of the plugin."""

    root: str  # of the project; the tests run in a copy with marked modules
    package: str
    functions: list[str]  # modules whose functions are changed
    record: str  # files
    results: str
    output: str
    only: str
    seconds: float
    deadline: float  # on the wall clock
    again: bool
    recording: list[str]  # test modules


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
    why: str = ""  # what that test said


class Sent:
    """Everything that is sent to the server: which marks it has, and the mutant that it is to have."""

    def __init__(self) -> None:
        self.marks: set[str] = set()
        self.mutant: SqlMutant | None = None
        self._named: dict[str, set[str]] = {}  # a prepared statement is sent once and executed by its name

    def watch(self) -> None:
        for name in ("execute", "executemany", "copy"):
            setattr(psycopg.Cursor, name, self._watched(getattr(psycopg.Cursor, name)))

    def _watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(cursor: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
            return method(cursor, self._seen(query) if isinstance(query, str) else query, *args, **kwargs)

        return watched

    def _seen(self, sql: str) -> str:
        marks = marks_in(sql)
        for verb, name in _NAMED.findall(sql):
            if verb == "PREPARE":
                self._named[name] = marks
            self.marks |= self._named.get(name, set())
        self.marks |= marks
        return mutated(sql, self.mutant) if self.mutant is not None and self.mutant.key in marks else sql


sent = Sent()


class Executed:
    """The lines that were executed: the mutants that are in them."""

    def __init__(self, mutants: Iterable[Mutant]) -> None:
        self.marks: set[str] = set()
        self._keys: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for mutant in mutants:
            for line in mutant.lines if isinstance(mutant, CodeMutant) else ():
                self._keys[str(Path.cwd() / mutant.path)][line].add(mutant.key)

    def watch(self) -> None:
        sys.settrace(self._called)
        threading.settrace(self._called)

    def _called(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        return self._went_on if frame.f_code.co_filename in self._keys else None

    def _went_on(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            self.marks |= self._keys[frame.f_code.co_filename].get(frame.f_lineno, set())
        return self._went_on


def pytest_configure() -> None:
    sent.watch()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    options = Options(**json.loads(os.environ[OPTIONS]))
    first = next(item for item in session.items if "test_factories" in item.nodeid)
    _run(first, session.items[-1])  # makes the database, once for all forks
    _close_connections()
    database = _Database()
    if options.recording:
        paths = tuple(f"{path}::" for path in options.recording)
        _wait(_fork(session, options, lambda: _record(session, options, paths)), None)
        database.renew()
    _judge_all(session, options, database)
    return True


def _judge_all(session: pytest.Session, options: Options, database: _Database) -> None:
    items = {item.nodeid: item for item in session.items}
    record = [test for test in read_record(Path(options.record)) if test.test in items]
    known = read_results(Path(options.results))
    for mutant in mutants_of(Path(options.root), options.package, options.functions):
        before = known.get(mutant.key)
        is_wanted = before is None or (options.again and before.verdict in (SURVIVED, NOT_RUN))
        if not is_wanted or not re.search(options.only, str(mutant)):
            continue
        if time.time() > options.deadline:
            print("the time is over; the next run goes on from here")
            break
        tests = chosen(mutant, record, options.seconds)
        verdict = _judge(session, options, mutant, tests, items)
        if tests:
            database.renew()
        print(f"{verdict.verdict:9}{verdict.seconds:6.1f} s  {mutant}  [{verdict.by or verdict.tests}]", flush=True)
        with Path(options.results).open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")


def _judge(
    session: pytest.Session, options: Options, mutant: Mutant, tests: list[Recorded], items: dict[str, pytest.Item]
) -> Verdict:
    if not tests:
        return Verdict(mutant.key, NOT_RUN, "", 0, 0.0)
    began = time.monotonic()

    def work() -> int:
        if isinstance(mutant, CodeMutant):
            put_in_place(mutant, import_module(mutant.path.removesuffix(".py").replace("/", ".")))
        else:
            sent.mutant = mutant
        return _until_failure(session, sorted(tests, key=lambda test: _commits(items[test.test])), items)

    limit = _SPARE_SECONDS + 4 * sum(test.seconds for test in tests)
    status = _wait(_fork(session, options, work), limit)
    output = Path(options.output).read_text(errors="replace")
    *_, last = re.findall(r"RUNNING (.+)$", output, re.MULTILINE) or [""]
    by = "" if status == 0 else last if status == 1 else f"{last} status {status}"
    verdict = SURVIVED if status == 0 else INVALID if _REFUSED.search(output) else KILLED
    why = re.search(r"^E +(.+)$", output, re.MULTILINE)
    seconds = round(time.monotonic() - began, 1)
    return Verdict(mutant.key, verdict, by, len(tests), seconds, why[1] if why and status else "")


def _commits(item: pytest.Item) -> bool:
    """Whether the test commits. Such tests come last, because they empty the database."""
    marker = item.get_closest_marker("django_db")
    return "transactional_db" in getattr(item, "fixturenames", ()) or bool(marker and marker.kwargs.get("transaction"))


def _until_failure(session: pytest.Session, tests: list[Recorded], items: dict[str, pytest.Item]) -> int:
    for test, following in zip(tests, [*tests[1:], None], strict=True):
        item = items[test.test]
        print(f"RUNNING {test.test}", flush=True)
        signal.alarm(_SPARE_SECONDS_OF_A_TEST + round(10 * test.seconds))  # a loop may not end any more
        reports = _run(item, items[following.test] if following else session.items[0])
        failed = [report for report in reports if report.failed]
        if failed:
            print(failed[0].longreprtext)
            return 1
    return 0


def _record(session: pytest.Session, options: Options, paths: tuple[str, ...]) -> int:
    mine = [item for item in session.items if item.nodeid.startswith(paths)]
    executed = Executed(mutants_of(Path(options.root), options.package, options.functions))
    executed.watch()
    with Path(options.record).open("a", buffering=1) as file:
        for item, following in zip(mine, [*mine[1:], session.items[0]], strict=True):
            sent.marks, executed.marks, began = set(), set(), time.monotonic()
            reports = _run(item, following)
            passed = all(report.passed for report in reports)
            line = Recorded(item.nodeid, time.monotonic() - began, passed, frozenset(sent.marks | executed.marks))
            file.write(json.dumps({**asdict(line), "marks": sorted(line.marks)}) + "\n")
    return 0


def _run(item: pytest.Item, following: pytest.Item) -> list[pytest.TestReport]:
    reports: list[pytest.TestReport] = []
    item.config.pluginmanager.register(collector := _Reports(reports))
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    finally:
        item.config.pluginmanager.unregister(collector)
    return reports


class _Reports:
    def __init__(self, reports: list[pytest.TestReport]) -> None:
        self.reports = reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


# ---------------------------------------------------------------------------------------------------------- processes


def _fork(session: pytest.Session, options: Options, work: Callable[[], int]) -> int:
    """A process that does this work, with its output in a file; its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become(session, options, work)
    return pid


def _become(session: pytest.Session, options: Options, work: Callable[[], int]) -> NoReturn:
    status = 2
    try:
        os.setsid()
        file = os.open(options.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        status = work()
        sys.stdout.flush()
        session._setupstate.teardown_exact(None)
        _close_connections()
    finally:
        os._exit(status)


def _wait(pid: int, limit: float | None) -> int | None:
    """Its exit status; none if it took longer than that many seconds."""
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        ended, status = os.waitpid(pid, 0 if deadline is None else os.WNOHANG)
        if ended:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what its tests started
            return os.waitstatus_to_exitcode(status)
        if deadline is not None and time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.01)


# ----------------------------------------------------------------------------------------------------------- database


def _close_connections() -> None:
    """Before a fork, because two processes must not share one."""
    for connection in connections.all(initialized_only=True):
        connection.connection = connection.connection and connection.connection.close()


class _Database:
    """The database of the tests, as it was before any ran: some empty it, and one that was killed leaves its rows."""

    def __init__(self) -> None:
        settings = connections["default"].settings_dict
        self.name = str(settings["NAME"])
        address = {"host": settings["HOST"], "port": settings["PORT"], "user": settings["USER"]}
        self.server = make_conninfo(dbname="postgres", **address)
        self._execute(f"DROP DATABASE IF EXISTS {TEMPLATE}", f"CREATE DATABASE {TEMPLATE} TEMPLATE {self.name}")

    def renew(self) -> None:
        self._execute(
            f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)", f"CREATE DATABASE {self.name} TEMPLATE {TEMPLATE}"
        )

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self.server, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


# -------------------------------------------------------------------------------------------------------------- files


def mutants_of(root: Path, package: str, functions: Iterable[str]) -> list[Mutant]:
    """Of all SQL, but not of migrations, which cannot change any more; then of the functions of these modules."""
    paths = [path for path in sorted((root / package).rglob("*.py")) if "migrations" not in path.parts]
    found: list[Mutant] = []
    for path in paths:
        found += sources.mutants_in(str(path.relative_to(root)), path.read_text())
    for module in functions:
        found += changing.mutants_in(f"{package}/{module}", (root / package / module).read_text())
    return found


def chosen(mutant: Mutant, record: Iterable[Recorded], seconds: float) -> list[Recorded]:
    """The tests that send or execute this, as many as fit: of each module first the quick ones that do little else.

    Modules take turns, so that a large one leaves time for the others; those that are named like the mutated one, or of
    races for a lock, begin.
    """
    is_lock = isinstance(mutant, SqlMutant) and mutant.cut.kind in (FOR_UPDATE, SKIP_LOCKED)
    related = "tests/concurrency/" if is_lock else f"test_{Path(mutant.path).stem[:4]}"
    sending = [test for test in record if test.passed and mutant.key in test.marks]
    sending.sort(key=lambda test: (test.seconds + 0.02) * len(test.marks))
    seen, turn = Counter[str](), dict[str, tuple[int, bool]]()
    for test in sending:
        module = test.test.partition("::")[0]
        turn[test.test] = seen[module], related not in module
        seen[module] += 1
    sending.sort(key=lambda test: turn[test.test])
    taken: list[Recorded] = []
    for test in sending:
        if seconds <= 0:
            break
        taken.append(test)
        seconds -= test.seconds
    return taken


def read_record(path: Path) -> list[Recorded]:
    """What was recorded last of each test."""
    newest = {line["test"]: line for line in _lines(path)}
    return [Recorded(**{**line, "marks": frozenset(line["marks"])}) for line in newest.values()]


def read_results(path: Path) -> dict[str, Verdict]:
    return {line["key"]: Verdict(**line) for line in _lines(path)}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
