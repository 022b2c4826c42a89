"""Blocked keys, one by one or by queue and error: read queue by queue along an index, because none has them all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from ...counting import MANY
from ...engine import sql
from ...engine.databases import Rows, rows
from ...engine.transactions import in_transaction

MOST_GROUPS = 200


@dataclass(frozen=True, slots=True)
class Filter:
    """Which blocked keys: those of a queue, with an error, or whose name begins with a text; ``None`` is any."""

    queue: str | None = None
    fingerprint: str | None = None
    key_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class BlockedGroup:
    """The blocked keys of a queue whose jobs failed in the same place."""

    queue: str
    fingerprint: str  # empty if the jobs have no error
    number: int
    is_capped: bool  # there are more keys than were read
    waiting: int  # jobs behind these keys, counted up to ``MANY`` and one
    since: datetime
    until: datetime
    example: UUID


def blocked_jobs(wanted: Filter, number: int, *, offset: int = 0, newest_first: bool = False, using: str) -> list[UUID]:
    """The ids of up to ``number`` blocking jobs, the longest blocked first, or the latest blocked first."""
    order = "DESC" if newest_first else "ASC"
    answer = _asked(sql.inspect.BLOCKED_JOBS, wanted, using, order=order, most=offset + number, offset=offset)
    return [row[0] for row in answer]


def count_blocked(wanted: Filter, *, using: str) -> int:
    """How many keys are blocked: exact up to ``MANY``."""
    return int(_asked(sql.inspect.COUNT_BLOCKED, wanted, using, most=MANY + 1)[0][0])


def blocked_groups(wanted: Filter, *, using: str) -> list[BlockedGroup]:
    """The blocked keys by queue and error, the largest group first; a bounded number of each queue."""
    answer = _asked(sql.inspect.BLOCKED_GROUPS, wanted, using, most=MANY, groups=MOST_GROUPS)
    return [
        BlockedGroup(queue, fingerprint, number, of_queue >= MANY, waiting, since, until, example)
        for queue, fingerprint, number, of_queue, waiting, since, until, example in answer
    ]


def _asked(statement: str, wanted: Filter, using: str, *, order: str = "ASC", **params: Any) -> Rows:
    conditions = {
        "queue": "AND q.name = %(queue)s" if wanted.queue is not None else "",
        "jobs": ("AND fingerprint = %(fingerprint)s " if wanted.fingerprint is not None else "")
        + ("AND singleton_key LIKE %(prefix)s " if wanted.key_prefix is not None else ""),
        "order": order,
    }
    params |= {"queue": wanted.queue, "fingerprint": wanted.fingerprint, "prefix": _beginning(wanted.key_prefix or "")}
    return in_transaction(using, partial(rows, using, statement.format(**conditions), params))


def _beginning(text: str) -> str:
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return f"{text}%"
