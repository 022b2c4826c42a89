"""The laboratory: processes that send, fetch, crash, recover and disturb, and the records of what they saw.

Each process writes down what it did and when, by the clock that all processes of a machine share; afterwards
:mod:`.race_checks` proves from the records and the final table that the laws held.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.conninfo import make_conninfo

RACE_FACTOR = max(1, int(os.environ.get("JOBQUEUE_RACE_FACTOR", "1")))  # for longer runs

_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Plan:
    """What happens in one run. Shares are probabilities."""

    queue: str
    keys: int
    jobs: int  # to be committed, by all senders together
    seed: int = 0
    senders: int = 4
    fetchers: int = 4
    backlog: int = 2  # per key: half of the senders send more only when less than that waits
    rollbacks: float = 0.1
    fails: float = 0.08
    crashes: float = 0.01
    delays: float = 0.0  # of jobs that are sent with a delay
    blocks: bool = False  # whether such a job holds up its key
    toggles: bool = False  # whether that changes all the time
    tags: bool = False  # half of the fetchers take only jobs with a tag, and a third of the jobs have it
    skips: bool = False  # whether the queue goes on when a job's attempts are used up
    chaos: bool = False  # an operator without mercy
    send_isolation: str = "READ COMMITTED"
    finish_isolation: str = ""  # of a caller's transaction around each finish; none if empty
    retry_limit: int | None = 50
    ordered: bool = True
    patience: float = 20.0  # seconds without any progress that count as stuck


class Sent(NamedTuple):
    id: UUID
    key: str
    called: int
    committed: int
    delay: float


@dataclass
class Attempt:
    id: UUID
    key: str
    seq: int
    number: int
    called: int  # when the fetch or the hand-over was called that claimed it
    started: int
    ended: int = 0  # before the verb was called that finished it


class Deed(NamedTuple):
    """Something an operator did to a job, and it worked."""

    verb: str
    id: UUID
    called: int


class Casualty(NamedTuple):
    """A worker that crashed; what it held comes back by itself if its leases run out."""

    name: str
    incarnation: UUID
    leased: bool


@dataclass
class Report:
    """What one process saw, or all of them together."""

    sent: list[Sent] = field(default_factory=list)
    rolled_back: list[UUID] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    completed: list[UUID] = field(default_factory=list)  # accepted by the queue
    stopped: list[UUID] = field(default_factory=list)  # by the worker that held it
    deeds: list[Deed] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sqlstates: Counter[str] = field(default_factory=Counter)  # every error of the server, also those handled inside
    errors: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        for name in ("sent", "rolled_back", "attempts", "completed", "stopped", "deeds", "errors"):
            getattr(self, name).extend(getattr(other, name))
        self.counts.update(other.counts)
        self.sqlstates.update(other.sqlstates)

    def ids_of(self, *verbs: str) -> set[UUID]:
        return {deed.id for deed in self.deeds if deed.verb in verbs}


class Signals:
    """What the processes tell each other."""

    def __init__(self) -> None:
        self.senders_done = _context.Event()
        self.all_done = _context.Event()
        self.casualties = _context.SimpleQueue()

    def clear(self) -> None:
        self.senders_done.clear()
        self.all_done.clear()
        while not self.casualties.empty():
            self.casualties.get()


class Here:
    """What this process was given when it started."""

    signals: Signals


here = Here()


class Laboratory:
    """A dozen processes that are started once and used for many runs, because each takes a second to start."""

    def __init__(self, database: Mapping[str, Any]) -> None:
        self.signals = Signals()
        self._pool = ProcessPoolExecutor(
            16, mp_context=_context, initializer=_set_up, initargs=(_dsn(database), self.signals)
        )

    def run(self, plan: Plan) -> Report:
        from . import race_operator, race_worker
        from . import race_roles as roles

        self.signals.clear()
        parts = [(race_worker.fetch, number) for number in range(plan.fetchers)] + [(roles.tidy, 0)]
        parts += [(race_operator.disturb, 0)] if plan.chaos else []
        others = [self._pool.submit(roles.play, part, plan, number) for part, number in parts]
        senders = [self._pool.submit(roles.play, roles.send, plan, number) for number in range(plan.senders)]
        report = Report()
        self._gather(senders, report)
        self.signals.senders_done.set()
        self._gather(others, report)
        return report

    def _gather(self, futures: list[Future[Report]], report: Report) -> None:
        for future in futures:
            report.add(future.result(600 * RACE_FACTOR))

    def close(self) -> None:
        self.signals.all_done.set()
        self._pool.shutdown()


def _dsn(database: Mapping[str, Any]) -> str:
    """The test's own database, as a connection string."""
    given = {"dbname": database["NAME"], "host": database["HOST"], "port": database["PORT"], "user": database["USER"],
             "password": database["PASSWORD"], **database["OPTIONS"]}  # fmt: skip
    return make_conninfo(**{name: value for name, value in given.items() if value})


def _set_up(dsn: str, signals: Signals) -> None:
    """In each process, before anything of Django is imported."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["JOBQUEUE_TEST_DSN"] = dsn
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django

    django.setup()
    here.signals = signals


def _end_with_parent() -> None:
    """A run that is killed leaves no processes behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
