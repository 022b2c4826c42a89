"""What the first page of the admin counts, for one queue or for all: each count stops at a limit."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from ...counting import MANY
from ...engine import backlog, sql
from ...engine.databases import rows
from ...engine.transactions import in_transaction

MOST_BEHIND = 100_000  # jobs behind blocked keys that are counted
MOST_OF_KEY = 10_000  # of these, behind one key


class QueueNow(NamedTuple):
    """A queue, and some numbers of its jobs."""

    name: str
    is_paused: bool
    is_dead_letter: bool  # whether another queue sends its dead letters here
    completed: int  # in the last hour
    failed: int  # for good, in the last hour
    waiting: int | None  # at the end of the last minute
    warning_queue_size: int | None
    dead: int  # that failed for good since a given time, and were neither retried nor skipped

    @property
    def is_long(self) -> bool:
        """Whether more jobs wait than the backlog warning of the queue allows."""
        if self.waiting is None or self.warning_queue_size is None:
            return False
        return self.waiting > self.warning_queue_size


class BlockedGroup(NamedTuple):
    """Blocked keys of a queue whose jobs failed in the same place."""

    queue: str
    fingerprint: str
    keys: int
    behind: int  # jobs that wait behind them
    since: datetime
    example: UUID  # the job that blocks its key the longest


def queues(since: datetime, *, using: str) -> list[QueueNow]:
    """All queues by name. Up to ``MANY`` jobs of each that failed since then are counted."""
    params = {"since": since, "most": MANY + 1}
    return [QueueNow(*row) for row in in_transaction(using, partial(rows, using, sql.inspect.QUEUES, params))]


def blocked_groups(queue: str | None = None, *, using: str) -> list[BlockedGroup]:
    """The blocked keys by queue and error: first those behind which most jobs wait, then those blocked the longest.

    Up to ``MANY`` keys of each queue are counted.
    """
    params = {"queue": queue, "keys": MANY + 1, "of_key": MOST_OF_KEY, "jobs": MOST_BEHIND}
    answer = in_transaction(using, partial(rows, using, sql.inspect.BLOCKED_GROUPS, params))
    return sorted((BlockedGroup(*row) for row in answer), key=lambda group: (-group.behind, group.since))


def count_waiting(queue: str | None = None, *, most: int, using: str) -> tuple[int, bool]:
    """How many jobs wait, and whether there are more: up to ``most`` of each queue and kind are counted."""
    found = backlog.count_waiting("''", None if queue is None else [queue], most + 1, using)
    numbers = [number for *_, number in found]
    return sum(min(number, most) for number in numbers), any(number > most for number in numbers)
