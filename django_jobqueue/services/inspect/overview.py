"""What the first page of the admin counts, for one queue or for all: each count stops at a limit."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import NamedTuple

from ...counting import MANY
from ...engine import backlog, sql
from ...engine.databases import rows
from ...engine.transactions import in_transaction


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


def queues(since: datetime, *, using: str) -> list[QueueNow]:
    """All queues by name. Up to ``MANY`` jobs of each that failed since then are counted."""
    params = {"since": since, "most": MANY + 1}
    return [QueueNow(*row) for row in in_transaction(using, partial(rows, using, sql.inspect.QUEUES, params))]


def count_waiting(queue: str | None = None, *, most: int, using: str) -> tuple[int, bool]:
    """How many jobs wait, and whether there are more: up to ``most`` of each queue and kind are counted."""
    found = backlog.count_waiting("''", None if queue is None else [queue], most + 1, using)
    numbers = [number for *_, number in found]
    return sum(min(number, most) for number in numbers), any(number > most for number in numbers)
