"""Ids that senders choose: an id identifies one job in all queues.

The primary key refuses an id twice only within a queue. Two transactions that send one id to two queues do not see each
other's job, so each of them locks the id before it looks for a job that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from django.db import connections

from .databases import Rows, rows
from .drafts import Checked
from .sql.send import LOCK_FREE_IDS, LOCK_ID
from .transactions import Statement, at_once, joins, row_at_once

MOST_LOCKED = 200  # ids of one batch, because all transactions of the server share the memory for locks


def to_lock(jobs: Iterable[Checked]) -> list[UUID]:
    """The ids that the senders of these jobs chose; none if there are too many to lock."""
    ids = list(dict.fromkeys(job.id for job in jobs if job.given_id))
    return ids if len(ids) <= MOST_LOCKED else []


def locking(ids: Collection[UUID]) -> Statement:
    """The statement that locks those of these ids that no job has; :func:`taken` reads its answer."""
    return LOCK_FREE_IDS, {"ids": list(ids)}


def taken(answer: Rows) -> set[UUID]:
    return {id for (id,) in answer}


def row_of_insert(using: str, id: UUID, sql: str, params: dict[str, Any]) -> tuple[Any, ...] | None:
    """Run ``sql``, which stores a job with this id, and return its row; ``None`` if a queue has a job with this id."""
    if not joins(connections[using]):
        # The id is locked even if it is taken, because one message cannot react to its first answer. The lock ends with
        # the message.
        _, stored = at_once(using, [(LOCK_ID, params), (sql, params)])
        return stored[0] if stored else None
    if rows(using, *locking([id])):
        return None
    return row_at_once(using, sql, params)
