"""Failures that happened in the same place, together: what to look at when much fails at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from ..engine import sql
from ..engine.transactions import in_transaction, rows
from ..states import DEAD

MOST_GROUPS = 200
MOST_JOBS = 1_000  # of one group that are looked at, the latest

# Leaps from fingerprint to fingerprint along their index, then looks at the latest jobs of each.
GROUPS = f"""
WITH RECURSIVE f(fingerprint, place) AS (
    (SELECT fingerprint, 1 FROM jobqueue_job WHERE NOT fingerprint = '' ORDER BY fingerprint LIMIT 1)
    UNION ALL
    SELECT (SELECT fingerprint FROM jobqueue_job WHERE NOT fingerprint = '' AND fingerprint > f.fingerprint
        ORDER BY fingerprint LIMIT 1), f.place + 1
    FROM f WHERE f.fingerprint IS NOT NULL AND f.place < %(groups)s)
SELECT f.fingerprint, g.number, g.seen, g.first, g.last, g.ids, g.queues
FROM f CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE dead) AS number, count(*) AS seen, min(ended) AS first, max(ended) AS last,
        (array_agg(id ORDER BY seq DESC) FILTER (WHERE dead))[1:1] AS ids,
        (array_agg(DISTINCT queue_id) FILTER (WHERE dead))[1:5] AS queues
    FROM (
        SELECT id, seq, queue_id, attempt_finished_at AS ended, state IN {sql.parts.listed(DEAD)} AS dead
        FROM jobqueue_job WHERE fingerprint = f.fingerprint AND NOT fingerprint = '' ORDER BY seq DESC LIMIT %(jobs)s
    ) latest
) g WHERE f.fingerprint IS NOT NULL AND g.number > 0
"""


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
    found = in_transaction(using, partial(rows, using, GROUPS, given))
    groups = [
        Group(mark, number, seen >= MOST_JOBS, first, last, ids[0], list(queues))
        for mark, number, seen, first, last, ids, queues in found
    ]
    return sorted(groups, key=lambda group: (group.last_at is not None, group.last_at), reverse=True)
