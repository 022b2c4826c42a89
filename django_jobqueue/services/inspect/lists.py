"""Lists of any number of jobs, read page by page, and counts that stop at a limit."""

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
    """Up to ``number`` of these jobs, newest first: the latest sent before ``before``, or the first after ``after``."""
    return paging.look(jobs, number, before=before, after=after)


def count(jobs: QuerySet[Any]) -> Count:
    """How many rows these are; the count stops at a limit."""
    return paging.count(jobs)


def count_shown(jobs: QuerySet[Any], verb: str, snapshot: str) -> Count:
    """How many of these jobs the verb would change, of those that were in their present state at the snapshot."""
    return paging.count(Seen(verb, snapshot).among(jobs))


def last_number(*, using: str) -> int:
    """The sequence number of the latest send."""
    return paging.last_number(using)


def by_index(questions: Callable[[], T], *, statement_ms: int | None = None, using: str) -> T:
    """Run several queries in one transaction and have them planned along our indexes, whatever the statistics say.

    ``statement_ms`` is the time limit for each statement. In a caller's transaction, its own limit is restored.
    """

    def bounded() -> T:
        before = rows(using, sql.session.SWAP_STATEMENT_TIMEOUT, [f"{statement_ms}ms"])[0][0]
        answer = questions()
        if connections[using].in_atomic_block and not connections[using].needs_rollback:
            rows(using, sql.session.SWAP_STATEMENT_TIMEOUT, [before])
        return answer

    return in_transaction(using, questions if statement_ms is None else bounded)
