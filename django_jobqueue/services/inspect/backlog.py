"""What waits, runs and failed for good in each queue: along the indexes of that, exact up to a limit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from ...conf import get_settings
from ...engine import sql
from ...engine.backlog import MOST, count_waiting
from ...engine.databases import Rows, rows
from ...engine.transactions import in_transaction
from ...timings import OVERDUE_SECONDS


class Waiting(NamedTuple):
    """Jobs of a queue that wait, in one state and for one reason."""

    queue: str
    state: str
    hold: str | None
    number: int


class Running(NamedTuple):
    """Jobs of a queue that a worker holds, in one state."""

    queue: str
    state: str
    number: int


class Dead(NamedTuple):
    """Jobs of a queue that failed for good, in one state, and for how long the first of them has."""

    queue: str
    policy: str
    state: str
    number: int
    seconds: float


class Backlog(NamedTuple):
    """A queue in which more jobs wait than its warning allows."""

    queue: str
    waiting: int
    warned_from: int


class Pulse(NamedTuple):
    """A mark that changes when there is something new for an operator to see, and how many jobs run."""

    mark: str
    running: int


def waiting(queues: Iterable[str] | None = None, *, most: int = MOST, using: str) -> list[Waiting]:
    """Count what waits in these queues or in all: exact up to ``most`` of each kind."""
    return [Waiting(*row) for row in count_waiting("state", queues, most, using)]


def running(*, most: int, using: str) -> list[Running]:
    """Count what runs: exact up to ``most`` of all queues together."""
    return [Running(*row) for row in _asked(using, sql.inspect.COUNT_RUNNING, {"most": most})]


def dead(*, most: int, using: str) -> list[Dead]:
    """Count what failed for good: exact up to ``most`` of each queue."""
    return [Dead(*row) for row in _asked(using, sql.inspect.COUNT_DEAD, {"most": most})]


def oldest_fetchable(*, using: str) -> dict[str, float]:
    """For how many seconds the oldest fetchable job of each queue that has one waits."""
    return {queue: max(0.0, seconds) for queue, seconds in _asked(using, sql.inspect.OLDEST_FETCHABLE)}


def backlogs(*, using: str) -> list[Backlog]:
    """Queues that were longer at the end of the last minute than their warning allows."""
    return [Backlog(*row) for row in rows(using, sql.inspect.BACKLOGS)]


def pulse(*, using: str) -> Pulse:
    """Whether there is something new, for less than a fetch costs."""
    limits = {"lost_seconds": get_settings().WORKER_LOST_SECONDS, "overdue_seconds": OVERDUE_SECONDS}
    number, *rest = _asked(using, sql.inspect.PULSE, limits)[0]
    return Pulse(hashlib.sha256(repr(rest).encode()).hexdigest()[:16], number)


def _asked(using: str, statement: str, params: Any = None) -> Rows:
    return in_transaction(using, partial(rows, using, statement, params))
