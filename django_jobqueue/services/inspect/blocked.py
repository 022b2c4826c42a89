"""Blocked keys, one by one or by queue and error: read queue by queue along an index, because none has them all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from ...counting import MANY
from ...engine import sql
from ...engine.databases import Rows, rows
from ...engine.transactions import in_transaction

MOST_BEHIND = 100_000  # jobs behind blocked keys that are counted
MOST_OF_KEY = 10_000  # of these, behind one key


@dataclass(frozen=True, slots=True)
class Filter:
    """Which blocked keys: those of a queue, with an error, or whose name begins with a text; ``None`` is any."""

    queue: str | None = None
    fingerprint: str | None = None
    key_prefix: str | None = None


class BlockedGroup(NamedTuple):
    """Blocked keys of a queue whose jobs failed in the same place."""

    queue: str
    fingerprint: str  # empty if the jobs have no error
    keys: int
    behind: int  # jobs that wait behind them
    since: datetime
    example: UUID  # the job that blocks its key the longest
    is_capped: bool = False  # the queue has more blocked keys than were read


def blocked_jobs(wanted: Filter, number: int, *, offset: int = 0, newest_first: bool = False, using: str) -> list[UUID]:
    """The ids of up to ``number`` blocking jobs, the longest blocked first, or the latest blocked first."""
    order = "DESC" if newest_first else "ASC"
    answer = _asked(sql.inspect.BLOCKED_JOBS, wanted, using, order=order, most=offset + number, offset=offset)
    return [row[0] for row in answer]


def count_blocked(wanted: Filter, *, using: str) -> int:
    """How many keys are blocked: exact up to ``MANY``."""
    return int(_asked(sql.inspect.COUNT_BLOCKED, wanted, using, most=MANY + 1)[0][0])


def blocked_groups(queue: str | None = None, *, using: str) -> list[BlockedGroup]:
    """The blocked keys by queue and error: first those behind which most jobs wait, then those blocked the longest.

    Up to ``MANY`` keys of each queue are counted.
    """
    params = {"queue": queue, "keys": MANY + 1, "of_key": MOST_OF_KEY, "jobs": MOST_BEHIND}
    answer = in_transaction(using, partial(rows, using, sql.inspect.BLOCKED_GROUPS, params))
    groups = [BlockedGroup(*row) for row in answer]
    keys: Counter[str] = Counter()
    for group in groups:
        keys[group.queue] += group.keys
    groups = [group._replace(is_capped=keys[group.queue] > MANY) for group in groups]
    return sorted(groups, key=lambda group: (-group.behind, group.since))


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
