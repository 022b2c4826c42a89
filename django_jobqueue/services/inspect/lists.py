"""Lists of any number of jobs, read page by page, and counts that stop at a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import connections
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.db.models.lookups import IContains

from ...counting import Count
from ...engine import paging, sql
from ...engine.databases import rows
from ...engine.paging import Page, Piece
from ...engine.snapshots import Seen
from ...engine.transactions import in_transaction
from ...models import Job

J = TypeVar("J", bound=Job)
T = TypeVar("T")

SEARCHED = 20_000  # sequence numbers whose jobs are searched for a text
SEARCHED_SECONDS = 2.0


def read_page(
    jobs: QuerySet[J],
    number: int,
    *,
    any_state: QuerySet[J],
    all_of: str | None,
    before: int | None = None,
    after: int | None = None,
) -> Page[J]:
    """Up to ``number`` of these jobs, newest first: the latest sent before ``before``, or the first after ``after``.

    Also the number of all these jobs, and of those of each state among ``any_state``; see the engine.
    """
    return paging.read_page(jobs, number, any_state=any_state, all_of=all_of, before=before, after=after)


def search(
    jobs: QuerySet[J],
    text: str,
    number: int,
    *,
    is_shown: Callable[[J], bool],
    in_data: bool,
    before: int | None = None,
    after: int | None = None,
) -> Piece[J]:
    """Jobs whose error, or data if ``in_data``, contains this text, like :func:`read_page`; bounded in rows and time.

    Only jobs that are found also in what is displayed, which ``is_shown`` decides, are returned: a search would
    otherwise disclose hidden values letter by letter.
    """
    has_text = Q(error__icontains=text)
    if in_data:
        has_text |= Q(IContains(Cast("data", TextField()), text))
    matching = jobs.filter(has_text)
    until = time.monotonic() + SEARCHED_SECONDS
    found: list[J] = []
    looked = 0
    while True:
        left = until - time.monotonic()
        piece = paging.search(
            matching, number, before=before, after=after, most=SEARCHED - looked, seconds=max(left, 0.1)
        )
        found += filter(is_shown, piece.jobs)
        looked += piece.looked
        if len(found) >= number or not piece.more or looked >= SEARCHED or time.monotonic() >= until or not piece.jobs:
            return Piece(found[:number], piece.place, piece.more or len(found) > number, looked)
        before, after = (piece.place, None) if after is None else (None, piece.place)


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
