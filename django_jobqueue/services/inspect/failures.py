"""Failed jobs grouped by the place in the code where they failed, for incidents in which many jobs fail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from ...engine import sql
from ...engine.databases import rows
from ...engine.transactions import in_transaction

MOST_GROUPS = 200
TREND_HOURS = sql.inspect.TREND_HOURS
MOST_JOBS = 1_000  # the latest of each group that are counted


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that failed for good in the same place."""

    fingerprint: str
    number: int  # of the latest jobs that failed there
    is_capped: bool
    first_at: datetime | None
    last_at: datetime | None
    example: UUID
    queues: list[str]
    hours: list[int]  # failures in each of the last hours, the current hour first

    @property
    def counted_hours(self) -> int:
        """How many of the hours were counted completely, because the jobs that were read reach back so far."""
        if not self.is_capped:
            return len(self.hours)
        return max(1, *(hour for hour, number in enumerate(self.hours) if number), 0)


def failure_groups(*, using: str) -> list[Group]:
    """The groups of jobs that failed for good, the latest first; a bounded number of each."""
    limits = {"groups": MOST_GROUPS, "jobs": MOST_JOBS}
    answer = in_transaction(using, partial(rows, using, sql.inspect.FAILURE_GROUPS, limits))
    groups = [
        Group(fingerprint, number, seen >= MOST_JOBS, first, last, ids[0], list(queues), list(hours))
        for fingerprint, number, seen, first, last, ids, queues, hours in answer
    ]
    return sorted(groups, key=lambda group: (group.last_at is not None, group.last_at), reverse=True)
