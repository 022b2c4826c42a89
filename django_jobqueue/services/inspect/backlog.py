"""How many jobs wait, run and failed for good in each queue: counted along indexes, exact up to a limit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from ...conf import get_settings
from ...engine import sql
from ...engine.backlog import MOST, count_waiting
from ...engine.databases import Rows, rows
from ...engine.transactions import at_once, in_transaction
from ...timings import OVERDUE_SECONDS

MOST_RUNNING = 10_000  # running jobs that are counted


class Waiting(NamedTuple):
    """Waiting jobs of a queue, in one state and with one hold."""

    queue: str
    state: str
    hold: str | None
    number: int


class WaitingFor(NamedTuple):
    """Waiting jobs of a queue with one handler, by what they wait for.

    ``because`` is ``ready`` (nothing), ``until`` (their time), ``lane`` (a running job), ``blocked`` (a job of the key
    that failed for good) or ``behind_delayed`` (a job of the key that is not due).
    """

    queue: str
    is_paused: bool
    handler: str
    is_tagged: bool  # whether they have the tags that were asked for
    because: str
    number: int
    due_at: datetime | None  # when the first of them is due, if they wait for their time


class Running(NamedTuple):
    """Running jobs of a queue, in one state."""

    queue: str
    state: str
    number: int


class FailedForGood(NamedTuple):
    """Jobs of a queue that failed for good, in one state, and how many seconds ago the first of them did."""

    queue: str
    policy: str
    state: str
    number: int
    seconds: float


class Oldest(NamedTuple):
    """A job that could run now, and for how many seconds it could have."""

    seconds: float
    id: UUID


class Pulse(NamedTuple):
    """A hash that changes when there is something new for an operator to see, and how many jobs run."""

    mark: str
    running: int
    counted_until: datetime | None  # by maintenance


def waiting(queues: Iterable[str] | None = None, *, most: int = MOST, using: str) -> list[Waiting]:
    """Count the waiting jobs of these queues, or of all: exact up to ``most`` of each kind."""
    return [Waiting(*row) for row in count_waiting("state", queues, most, using)]


def waiting_for(queues: Iterable[str], *, tags: Iterable[str] = (), most: int = MOST, using: str) -> list[WaitingFor]:
    """Count the waiting jobs of these queues by what they wait for: exact up to ``most`` of each kind."""
    params = {"queues": list(queues), "tags": list(tags), "most": most}
    return [WaitingFor(*row) for row in _asked(using, sql.inspect.WAITING_FOR, params)]


def running(*, most: int, using: str) -> list[Running]:
    """Count the running jobs: exact up to ``most`` of all queues together."""
    return [Running(*row) for row in _asked(using, sql.inspect.COUNT_RUNNING, {"most": most})]


def dead(*, most: int, using: str) -> list[FailedForGood]:
    """Count the jobs that failed for good: exact up to ``most`` of each queue."""
    return [FailedForGood(*row) for row in _asked(using, sql.inspect.COUNT_DEAD, {"most": most})]


def first_fetchable(*, using: str) -> dict[str, Oldest]:
    """The oldest job of each queue that could run now; queues without one are left out."""
    return {queue: Oldest(max(0.0, seconds), id) for queue, seconds, id in _asked(using, sql.inspect.OLDEST_FETCHABLE)}


def oldest_fetchable(*, using: str) -> dict[str, float]:
    """For how many seconds the oldest fetchable job of each queue has waited; queues without one are left out."""
    return {queue: oldest.seconds for queue, oldest in first_fetchable(using=using).items()}


def pulse(queue: str | None = None, *, most: int = MOST_RUNNING, using: str) -> Pulse:
    """The pulse now, with the running jobs of one queue or of all. It is one statement, and costs less than a fetch."""
    params = {
        "lost_seconds": get_settings().WORKER_LOST_SECONDS,
        "overdue_seconds": OVERDUE_SECONDS,
        "queue": queue,
        "most": most,
    }
    [[(number, *rest)]] = at_once(using, [(sql.inspect.PULSE, params)])
    return Pulse(hashlib.sha256(repr(rest).encode()).hexdigest()[:16], number, rest[-1])


def _asked(using: str, statement: str, params: Any = None) -> Rows:
    return in_transaction(using, partial(rows, using, statement, params))
