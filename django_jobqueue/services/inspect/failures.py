"""Failures that happened in the same place, together: what to look at when much fails at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from ...engine import sql
from ...engine.databases import rows
from ...engine.transactions import in_transaction

MOST_GROUPS = 200
MOST_JOBS = 1_000  # of one group that are looked at, the latest


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that failed for good in one place."""

    fingerprint: str
    number: int  # among the latest that failed there
    is_capped: bool
    first_at: datetime | None
    last_at: datetime | None
    example: UUID
    queues: list[str]


def failure_groups(*, using: str) -> list[Group]:
    """The groups of jobs that failed for good, the latest first; a bounded number of each."""
    given = {"groups": MOST_GROUPS, "jobs": MOST_JOBS}
    found = in_transaction(using, partial(rows, using, sql.inspect.FAILURE_GROUPS, given))
    groups = [
        Group(mark, number, seen >= MOST_JOBS, first, last, ids[0], list(queues))
        for mark, number, seen, first, last, ids, queues in found
    ]
    return sorted(groups, key=lambda group: (group.last_at is not None, group.last_at), reverse=True)
