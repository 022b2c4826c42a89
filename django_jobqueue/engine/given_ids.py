"""Ids that senders choose: an id means one job, in whatever queue.

The database refuses an id twice within a queue. Two transactions that send one id to two queues do not see each other's
job, so each locks the id before it looks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from django.db import connections

from .databases import Rows, Statement, rows
from .drafts import Checked
from .sql.send import LOCK_FREE_IDS, LOCK_ID
from .transactions import at_once, joins, row_at_once

MOST_LOCKED = 200  # ids of one batch, because all transactions of the server share the memory for locks


def to_lock(jobs: Iterable[Checked]) -> list[UUID]:
    """The ids that these jobs were given; none if there are too many to lock."""
    ids = list(dict.fromkeys(job.id for job in jobs if job.given_id))
    return ids if len(ids) <= MOST_LOCKED else []


def locking(ids: Collection[UUID]) -> Statement:
    """Locks those of these ids that no job has; :func:`taken` reads the answer."""
    return LOCK_FREE_IDS, {"ids": list(ids)}


def taken(answer: Rows) -> set[UUID]:
    return {id for (id,) in answer}


def row_of_insert(using: str, id: UUID, sql: str, params: dict[str, Any]) -> tuple[Any, ...] | None:
    """The row that ``sql`` returns, which stores a job with this id unless some queue has one; ``None`` if one has."""
    if not joins(connections[using]):
        # Locked also if it is taken: the lock ends with this message, which cannot decide on its first answer.
        found = at_once(using, [(LOCK_ID, params), (sql, params)])[1]
        return found[0] if found else None
    if rows(using, *locking([id])):
        return None
    return row_at_once(using, sql, params)
