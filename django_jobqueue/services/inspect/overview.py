"""What the first page of the admin counts, for one queue or for all: each count stops at a limit."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from ...counting import MANY
from ...engine import sql
from ...engine.databases import rows
from ...engine.transactions import in_transaction

MOST_BEHIND = 100_000  # jobs behind blocked keys that are counted
MOST_OF_KEY = 10_000  # of these, behind one key


class QueueNow(NamedTuple):
    """A queue, and how many of its jobs completed and failed for good in the last hour."""

    name: str
    is_paused: bool
    is_dead_letter: bool  # whether another queue sends its dead letters here
    completed: int
    failed: int


class BlockedGroup(NamedTuple):
    """Blocked keys of a queue whose jobs failed in the same place."""

    queue: str
    fingerprint: str
    keys: int
    behind: int  # jobs that wait behind them
    since: datetime
    example: UUID  # the job that blocks its key the longest


def queues(*, using: str) -> list[QueueNow]:
    """All queues by name."""
    return [QueueNow(*row) for row in in_transaction(using, partial(rows, using, sql.inspect.QUEUES))]


def blocked_groups(queue: str | None = None, *, using: str) -> list[BlockedGroup]:
    """The blocked keys by queue and error: first those behind which most jobs wait, then those blocked the longest.

    Up to ``MANY`` keys of each queue are counted.
    """
    params = {"queue": queue, "keys": MANY + 1, "of_key": MOST_OF_KEY, "jobs": MOST_BEHIND}
    answer = in_transaction(using, partial(rows, using, sql.inspect.BLOCKED_GROUPS, params))
    return sorted((BlockedGroup(*row) for row in answer), key=lambda group: (-group.behind, group.since))


def failed_since(since: datetime, queue: str | None = None, *, using: str) -> int:
    """How many jobs failed for good since then, and were neither retried nor skipped: exact up to ``MANY``."""
    params = {"queue": queue, "since": since, "most": MANY + 1}
    answer = in_transaction(using, partial(rows, using, sql.inspect.FAILED_SINCE, params))
    return sum(number for _, number in answer)
