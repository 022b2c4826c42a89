"""Lists of jobs however many there are: a piece at a time, and counts that know when to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections
from django.db.models import QuerySet

from ...counting import Count
from ...engine import paging, sql
from ...engine.databases import rows
from ...engine.paging import Piece
from ...engine.snapshots import Seen
from ...engine.transactions import in_transaction
from ...models import Job

J = TypeVar("J", bound=Job)
T = TypeVar("T")


def look(jobs: QuerySet[J], number: int, *, before: int | None = None, after: int | None = None) -> Piece[J]:
    """Up to ``number`` of these jobs, newest first: those sent before a number; or the oldest sent after one."""
    return paging.look(jobs, number, before=before, after=after)


def count(jobs: QuerySet[Any]) -> Count:
    """How many these are, as far as that can be said at a bounded price."""
    return paging.count(jobs)


def count_shown(jobs: QuerySet[Any], verb: str, snapshot: str) -> Count:
    """How many of these the verb would change that were in their state at the snapshot."""
    return paging.count(Seen(verb, snapshot).among(jobs))


def last_number(*, using: str) -> int:
    """The number of the latest send."""
    return paging.last_number(using)


def by_index(questions: Callable[[], T], *, statement_ms: int | None = None, using: str) -> T:
    """Ask several questions in one transaction, planned by our indexes whatever the statistics say.

    With ``statement_ms`` no statement may take longer; in a caller's transaction its own limit is restored.
    """

    def bounded() -> T:
        before = rows(using, sql.session.SWAP_STATEMENT_TIMEOUT, [f"{statement_ms}ms"])[0][0]
        answer = questions()
        if connections[using].in_atomic_block and not connections[using].needs_rollback:
            rows(using, sql.session.SWAP_STATEMENT_TIMEOUT, [before])
        return answer

    return in_transaction(using, questions if statement_ms is None else bounded)
