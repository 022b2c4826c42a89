"""Jobs in the order they were sent, a bounded piece at a time, however many there are.

No b-tree has that order, because every send would have to pay for one more index. Instead, the index of ranges (BRIN)
finds the jobs of a window of numbers, and windows are read one after the other until there are enough jobs or enough
was read. Jobs that a selective index finds cheaply are read directly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from django.db import OperationalError, transaction
from django.db.models import Max, Min, QuerySet
from psycopg.errors import QueryCanceled

from ..counting import MANY, Count
from ..expressions import IsInBatches
from ..models import Job, OperationBatch
from . import sql
from .databases import rows
from .transactions import in_transaction

J = TypeVar("J", bound=Job)
R = TypeVar("R")

MOST = 100_000  # numbers read for one piece
NARROW = 1_000  # the first window
WIDER = 4
COUNTED = 50_000  # numbers read for a count that no index can answer
CHEAP = 20_000  # in the planner's cost units: jobs that an index finds at a lower cost are read directly
DIRECT_MS = 500  # after this time a direct read is given up, because the planner was wrong


@dataclass(frozen=True, slots=True)
class Piece(Generic[J]):
    """Some jobs, and the ``place`` to pass as ``before`` or ``after`` to continue."""

    jobs: list[J]
    place: int
    more: bool
    looked: int = 0  # numbers read; 0 if an index found all jobs


def look(
    jobs: QuerySet[J], number: int, *, before: int | None = None, after: int | None = None, most: int = MOST
) -> Piece[J]:
    """Return up to ``number`` of these jobs: the newest sent ``before`` a number, or the oldest sent ``after`` one.

    Without either, the newest jobs. At most ``most`` numbers are read; a piece with fewer jobs and ``more`` stopped
    there.
    """
    return in_transaction(jobs.db, partial(_look, jobs, number, before, after, most))


def count(jobs: QuerySet[Any]) -> Count:
    """Count these jobs, as far as this is possible at a bounded cost."""
    return in_transaction(jobs.db, partial(_count, jobs))


def last_number(using: str) -> int:
    """The number of the latest send."""
    return int(rows(using, sql.inspect.LAST_NUMBER)[0][0] or 0)


def first_number(using: str) -> int:
    """A number below which there are no jobs, close to that of the oldest."""
    return in_transaction(using, lambda: _Walk(using, 0, last_number(using)).skip(0))


# ------------------------------------------------------------------------------------------------------------ looking


def _look(jobs: QuerySet[J], number: int, before: int | None, after: int | None, most: int) -> Piece[J]:
    using = jobs.db
    order = "-seq" if after is None else "seq"
    bounded = jobs.order_by(order)
    if before is not None:
        bounded = bounded.filter(seq__lt=before)
    if after is not None:
        bounded = bounded.filter(seq__gt=after)
    if _is_filtered(jobs) and _is_selective(bounded):
        found = _directly(bounded[:number])
        if found is not None:
            return Piece(found, found[-1].seq if found else 0, len(found) == number)
    first, last = _ends(jobs)
    if after is None:
        walk = _Walk(using, last if before is None else max(first, min(before - 1, last)), first)
    else:
        walk = _Walk(using, min(max(after, first), last), last)
    with _only_bitmaps(using):
        return walk.gather(jobs.order_by(order), number, most)


def _ends(jobs: QuerySet[Any]) -> tuple[int, int]:
    """The numbers between which these jobs lie: after the first, and up to the last."""
    for condition in jobs.query.where.children:
        if isinstance(condition, IsInBatches):
            batches = OperationBatch.objects.using(jobs.db).filter(operation=condition.operation)
            ends = batches.aggregate(first=Min("first_seq"), last=Max("last_seq"))
            return (ends["first"] or 1) - 1, ends["last"] or 0
    return 0, last_number(jobs.db)


class _Walk:
    """Reads the numbers from ``start`` to ``end``, down or up, window by window."""

    def __init__(self, using: str, start: int, end: int) -> None:
        self.using, self.start, self.end, self.down = using, start, end, end <= start

    def step(self, place: int, width: int) -> int:
        return max(self.end, place - width) if self.down else min(self.end, place + width)

    def within(self, jobs: QuerySet[J], one: int, other: int) -> QuerySet[J]:
        return jobs.filter(seq__gt=min(one, other), seq__lte=max(one, other))

    def gather(self, jobs: QuerySet[J], number: int, most: int) -> Piece[J]:
        found: list[J] = []
        place, width, looked = self.start, min(NARROW, most), 0
        while place != self.end and looked < most:
            reached = self.step(place, width)
            part = list(self.within(jobs, place, reached)[: number - len(found)])
            found += part
            if len(found) == number:
                return Piece(found, found[-1].seq, True, looked)
            if not part and self.is_empty(place, reached):
                place, width = self.skip(reached), min(NARROW, most)
            else:
                looked += abs(place - reached)
                place, width = reached, min(width * WIDER, most - looked)
        return Piece(found, place + 1 if self.down else place, place != self.end, looked)

    def is_empty(self, one: int, other: int) -> bool:
        return not self.within(Job.objects.using(self.using).order_by(), one, other).exists()

    def skip(self, place: int) -> int:
        """A place close to the next job, or the end: the numbers of deleted jobs are skipped."""
        width, growing = NARROW * WIDER, True
        while place != self.end:
            reached = self.step(place, width)
            if self.is_empty(place, reached):
                place = reached
                width = width * WIDER if growing else width
            elif width <= NARROW:
                break
            else:
                width, growing = width // WIDER, False
        return place


# ----------------------------------------------------------------------------------------------------------- counting


def _count(jobs: QuerySet[Any]) -> Count:
    using = jobs.db
    wanted = jobs.order_by()
    if not _is_filtered(jobs):
        return Count(wanted[: MANY + 1].count())
    if _is_selective(wanted):
        found = _directly(wanted.values_list("pk")[: MANY + 1])
        if found is not None:
            return Count(len(found))
    first, last = _ends(jobs)
    walk = _Walk(using, last, first)
    with _only_bitmaps(using):
        newest = walk.within(wanted, last, walk.step(last, COUNTED))
        number = newest[: MANY + 1].count()
        older = last > first + COUNTED and not walk.is_empty(walk.step(last, COUNTED), first)
    return Count(number, COUNTED if older and number <= MANY else None)


# ------------------------------------------------------------------------------------------------------- the planner


def _is_filtered(jobs: QuerySet[Any]) -> bool:
    return bool(jobs.query.where)


def _is_selective(jobs: QuerySet[Any]) -> bool:
    """Whether the planner expects an index to find all of these jobs at a low cost."""
    (document,) = json.loads(jobs.order_by().only("seq").explain(format="json"))
    plan = document["Plan"]
    return plan["Total Cost"] <= CHEAP and not _reads_everything(plan)


def _reads_everything(node: dict[str, Any]) -> bool:
    """Whether the plan contains a sequential scan or a scan of a whole index."""
    kind = node["Node Type"]
    if kind == "Seq Scan" or (kind.startswith("Index") and "Index Cond" not in node and not _is_partial(node)):
        return True
    return any(_reads_everything(child) for child in node.get("Plans", ()))


def _is_partial(node: dict[str, Any]) -> bool:
    return not node["Index Name"].endswith("_pkey")


def _directly(jobs: QuerySet[Any, R]) -> list[R] | None:
    """Read these jobs directly; ``None`` if it takes longer than the planner expected."""
    using = jobs.db
    try:
        with transaction.atomic(using=using), _set(using, statement_timeout=f"{DIRECT_MS}ms"):
            return list(jobs)
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return None


@contextmanager
def _only_bitmaps(using: str) -> Iterator[None]:
    """Allow only bitmap scans, so that a window is never read by another index of all jobs."""
    with _set(using, enable_indexscan="off", enable_indexonlyscan="off"):
        yield


@contextmanager
def _set(using: str, **settings: str) -> Iterator[None]:
    """Change settings for the statements inside, and restore them after; a rollback restores them by itself."""
    before = {name: rows(using, sql.session.GET_SETTING, [name])[0][0] for name in settings}
    for name, value in settings.items():
        rows(using, sql.session.SET_SETTING, [name, value])
    yield
    for name, value in before.items():
        rows(using, sql.session.SET_SETTING, [name, value])
