"""The doctor's queries about jobs. Each reads a bounded number of rows along an index."""

from __future__ import annotations

import time
from typing import NamedTuple

from ...engine import sql
from ...engine.databases import rows
from ...engine.recovery import find_stranded
from ...engine.sweeps import Bounds


class HandlerName(NamedTuple):
    """A handler that some of the next jobs of a queue name, and how many do."""

    queue: str
    handler: str
    number: int


class NextJob(NamedTuple):
    """The job of a queue that a fetch would take next, and how long ago it was sent."""

    queue: str
    is_paused: bool
    seconds: float


class Counted(NamedTuple):
    """Jobs or keys of a queue, and how old the oldest of them is."""

    queue: str
    number: int
    seconds: float


class StrandedLane(NamedTuple):
    """A lane in which a job is held although no job is ahead of it."""

    queue: str
    key: str


class Stranded(NamedTuple):
    """The stranded lanes that were found, and whether all lanes could be checked in time."""

    lanes: set[StrandedLane]
    is_complete: bool


def waiting_handlers(*, sample: int, using: str) -> list[HandlerName]:
    """Which handlers the first ``sample`` fetchable and delayed jobs of each queue name, without dead letters."""
    return [HandlerName(*row) for row in rows(using, sql.inspect.WAITING_HANDLERS, {"n": sample})]


def next_jobs(*, using: str) -> list[NextJob]:
    """The next job of each queue in which one is fetchable, without dead letters."""
    return [NextJob(*row) for row in rows(using, sql.inspect.NEXT_TO_FETCH)]


def blocked_keys(*, most: int, using: str) -> list[Counted]:
    """How many keys of each ordered queue are blocked, without dead letters: exact up to ``most``."""
    return _counted(using, sql.inspect.BLOCKED_KEYS, [most])


def dead_letters(*, most: int, using: str) -> list[Counted]:
    """The dead letters of each queue that are fetchable or failed for good: exact up to ``most`` of each of the two."""
    return _counted(using, sql.inspect.DEAD_LETTERS, {"most": most})


def overdue_jobs(*, seconds: float, most: int, using: str) -> list[Counted]:
    """Active jobs that are past their deadline by ``seconds`` or more: exact up to ``most`` of all queues together."""
    return _counted(using, sql.inspect.OVERDUE, [seconds, most])


def undeleted_jobs(*, seconds: float, most: int, using: str) -> list[Counted]:
    """Finished jobs that should have been deleted more than ``seconds`` ago: exact up to ``most`` of each queue."""
    return _counted(using, sql.inspect.NOT_DELETED, [seconds, most])


def stranded_lanes(*, seconds: float, using: str) -> Stranded:
    """Lanes in which a job is held by no other job; the search takes at most ``seconds``."""
    bounds = Bounds(until=time.monotonic() + seconds)
    lanes = {StrandedLane(lane.queue, lane.key) for lane in find_stranded(using, bounds)}
    return Stranded(lanes, not bounds.unfinished)


def _counted(using: str, statement: str, params: object) -> list[Counted]:
    return [Counted(*row) for row in rows(using, statement, params)]
