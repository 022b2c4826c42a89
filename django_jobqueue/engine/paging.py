"""Jobs in the order they were sent, a bounded piece at a time, however many there are.

No b-tree has that order, because every send would have to pay for one more index. Instead, the index of ranges (BRIN)
finds the jobs of a window of numbers, and windows are read one after the other until there are enough jobs or enough
was read. Jobs that a selective index finds cheaply are read directly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

from django.db import OperationalError, transaction
from django.db.models import Count as Rows
from django.db.models import Max, Min, QuerySet
from psycopg.errors import QueryCanceled

from ..counting import MANY, Count
from ..expressions import IsInBatches
from ..models import Job, OperationBatch
from ..states import DEAD, ELIGIBLE, RUNNING, JobState
from . import sql
from .databases import rows
from .transactions import in_transaction

J = TypeVar("J", bound=Job)
R = TypeVar("R")

MOST = 100_000  # numbers read for one piece
NARROW = 1_000  # the first window
WIDER = 10
PARTS = 100  # into which a window is divided to find its first job
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


@dataclass(frozen=True, slots=True)
class Page(Generic[J]):
    """A piece of a list, the number of its jobs, and of the jobs of each state if the list had all states."""

    piece: Piece[J]
    count: Count
    states: dict[JobState, Count]


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


def read_page(
    jobs: QuerySet[J],
    number: int,
    *,
    any_state: QuerySet[J],
    all_of: str | None = None,
    before: int | None = None,
    after: int | None = None,
) -> Page[J]:
    """Read a piece of these jobs like :func:`look`, and count them and the jobs of each state, in few statements.

    ``any_state`` are the jobs without the condition on their state. If these are all jobs of a queue, pass its name as
    ``all_of``, or ``""`` if they are all jobs: those that wait, run or failed for good are then counted along indexes.
    """
    return in_transaction(jobs.db, partial(_read_page, jobs, number, any_state, all_of, before, after))


def search(
    jobs: QuerySet[J], number: int, *, before: int | None = None, after: int | None = None, most: int, seconds: float
) -> Piece[J]:
    """Like :func:`look`, but each statement may take only that long; the piece then ends before the jobs it read."""
    return in_transaction(jobs.db, partial(_look, jobs, number, before, after, most, round(seconds * 1000)))


def around(jobs: QuerySet[J], place: int, number: int, most: int) -> list[J]:
    """Up to ``number`` of these jobs on each side of a sequence number, among the ``most`` nearest numbers."""
    using = jobs.db
    walk = _Walk(using, place, 0)
    with _only_bitmaps(using):
        older = list(walk.within(jobs.order_by("-seq"), place - 1, max(0, place - most))[:number])
        newer = list(walk.within(jobs.order_by("seq"), place, place + most)[:number])
    return older[::-1] + newer


def last_number(using: str) -> int:
    """The number of the latest send."""
    return int(rows(using, sql.inspect.LAST_NUMBER)[0][0] or 0)


def first_number(using: str) -> int:
    """A number below which there are no jobs, close to that of the oldest."""
    return in_transaction(using, lambda: _Walk(using, 0, last_number(using)).skip(0))


# ------------------------------------------------------------------------------------------------------------ looking


def _look(
    jobs: QuerySet[J], number: int, before: int | None, after: int | None, most: int, ms: int | None = None
) -> Piece[J]:
    using = jobs.db
    bounded = _bounded(jobs, before, after)
    if _is_filtered(jobs) and _is_selective(bounded):
        found = _directly(using, lambda: list(bounded[:number]))
        if found is not None:
            return _whole(found, number)
    ends = _ends(jobs)
    with _only_bitmaps(using, ms):
        return _walk(using, before, after, ends).gather(_ordered(jobs, after), number, most, is_timed=ms is not None)


def _ordered(jobs: QuerySet[J], after: int | None) -> QuerySet[J]:
    return jobs.order_by("-seq" if after is None else "seq")


def _bounded(jobs: QuerySet[J], before: int | None, after: int | None) -> QuerySet[J]:
    bounds = {"seq__lt": before, "seq__gt": after}
    return _ordered(jobs, after).filter(**{name: place for name, place in bounds.items() if place is not None})


def _whole(found: list[J], number: int) -> Piece[J]:
    """The piece that an index found."""
    return Piece(found, found[-1].seq if found else 0, len(found) == number)


def _walk(using: str, before: int | None, after: int | None, ends: tuple[int, int]) -> _Walk:
    first, last = ends
    if after is None:
        return _Walk(using, last if before is None else max(first, min(before - 1, last)), first)
    return _Walk(using, min(max(after, first), last), last)


def _read_page(
    jobs: QuerySet[J], number: int, any_state: QuerySet[J], all_of: str | None, before: int | None, after: int | None
) -> Page[J]:
    using = jobs.db
    is_first = before is None and after in (None, 0)
    of_any_state = all_of is None and _is_selective(any_state)
    piece: Piece[J] | None = None
    counted: Count | None = None
    states: dict[JobState, Count] | None = None

    def directly() -> bool:
        nonlocal piece, counted, states
        piece = _whole(list(_bounded(jobs, before, after)[:number]), number)
        counted = _first_count(piece, number) if is_first else None
        counted = counted or Count(len(jobs.order_by().values_list("pk")[: MANY + 1]))
        states = _count_states(any_state) if of_any_state else None
        return True

    if of_any_state or (_is_filtered(jobs) and _is_selective(jobs)):
        _directly(using, directly)
    if piece is not None and counted is not None and states is not None:
        return Page(piece, counted, states)
    ends = _ends(jobs)
    with _only_bitmaps(using):
        if piece is None:
            piece = _walk(using, before, after, ends).gather(_ordered(jobs, after), number, MOST)
            counted = _first_count(piece, number) if is_first else None
        if counted is None and _is_filtered(jobs):
            counted = _count_newest(jobs, ends)
        states = _count_newest_states(any_state, ends)
    if counted is None:
        counted = _count_first(jobs)
    return Page(piece, counted, states if all_of is None else {**states, **_count_indexed_states(all_of, using)})


def _first_count(piece: Piece[J], number: int) -> Count | None:
    """The number of all jobs, if the first page has read them all."""
    return Count(len(piece.jobs), piece.looked if piece.more else None) if len(piece.jobs) < number else None


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

    def gather(self, jobs: QuerySet[J], number: int, most: int, *, is_timed: bool = False) -> Piece[J]:
        found: list[J] = []
        place, width, looked = self.start, min(most, max(NARROW, most // 4) if is_timed else NARROW), 0
        while place != self.end and looked < most:
            reached = self.step(place, width)
            window = self.within(jobs, place, reached)[: number - len(found)]
            part = _in_time(self.using, partial(list, window)) if is_timed else list(window)
            if part is None:
                break
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
        places, width = [place], NARROW * WIDER
        while places[-1] != self.end:
            places.append(self.step(places[-1], width))
            width *= WIDER
        while (reached := self._first_window(places)) is not None:
            place, end = reached
            if abs(end - place) <= NARROW:
                return place
            width = max(NARROW, abs(end - place) // PARTS)
            places = [*range(place, end, -width if self.down else width), end]
        return self.end

    def _first_window(self, places: list[int]) -> tuple[int, int] | None:
        """The first two successive places between which there are jobs."""
        windows = list(pairwise(places))
        bounds = {"low": [min(window) for window in windows], "high": [max(window) for window in windows]}
        found = rows(self.using, sql.inspect.FIRST_WINDOW, bounds)
        return windows[found[0][0] - 1] if found else None


# ----------------------------------------------------------------------------------------------------------- counting


def _count(jobs: QuerySet[Any]) -> Count:
    using = jobs.db
    if not _is_filtered(jobs):
        return _count_first(jobs)
    if _is_selective(jobs):
        found = _directly(using, lambda: len(jobs.order_by().values_list("pk")[: MANY + 1]))
        if found is not None:
            return Count(found)
    ends = _ends(jobs)
    with _only_bitmaps(using):
        return _count_newest(jobs, ends)


def _count_first(jobs: QuerySet[Any]) -> Count:
    return Count(jobs.order_by()[: MANY + 1].count())


def _count_newest(jobs: QuerySet[Any], ends: tuple[int, int]) -> Count:
    newest, among = _newest(jobs, ends)
    number = newest[: MANY + 1].count()
    return Count(number, among if number <= MANY else None)


def _newest(jobs: QuerySet[Any], ends: tuple[int, int]) -> tuple[QuerySet[Any], int | None]:
    """The jobs of the latest numbers, and how many numbers these are; ``None`` if there are no older jobs."""
    first, last = ends
    walk = _Walk(jobs.db, last, first)
    reached = walk.step(last, COUNTED)
    older = last > first + COUNTED and not walk.is_empty(reached, first)
    return walk.within(jobs.order_by(), last, reached), COUNTED if older else None


def _count_states(jobs: QuerySet[Any]) -> dict[JobState, Count]:
    states = Counter(jobs.order_by().values_list("state", flat=True)[: MANY + 1])
    return _of_each(states, JobState, MANY if states.total() > MANY else None)


def _count_newest_states(jobs: QuerySet[Any], ends: tuple[int, int]) -> dict[JobState, Count]:
    newest, among = _newest(jobs, ends)
    return _of_each(dict(newest.values_list("state").annotate(number=Rows("*"))), JobState, among)


def _count_indexed_states(queue: str, using: str) -> dict[JobState, Count]:
    """The jobs of a queue, or of all, in each of the states that an index has."""
    statement = sql.inspect.COUNT_STATES.format(queue=sql.inspect.OF_QUEUE if queue else "")
    counted: dict[str, Counter[str]] = {"waiting": Counter(), "running": Counter(), "dead": Counter()}
    full = set()
    for kind, state, number, read in rows(using, statement, {"queue": queue, "most": MANY + 1}):
        counted[kind][state] += number
        if read > MANY:
            full.add(kind)
    groups = {"waiting": ELIGIBLE, "running": RUNNING, "dead": DEAD}
    return {
        state: count
        for kind, states in groups.items()
        for state, count in _of_each(counted[kind], states, MANY if kind in full else None).items()
    }


def _of_each(counted: Mapping[str, int], states: Iterable[JobState], among: int | None) -> dict[JobState, Count]:
    return {state: Count(counted.get(state, 0), among) for state in states}


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


def _directly(using: str, read: Callable[[], R]) -> R | None:
    """What ``read`` returns, without windows; ``None`` if it takes longer than the planner expected."""

    def limited() -> R:
        with _set(using, statement_timeout=f"{DIRECT_MS}ms"):
            return read()

    return _in_time(using, limited)


def _in_time(using: str, read: Callable[[], R]) -> R | None:
    """What ``read`` returns; ``None`` if a statement reaches its time limit."""
    try:
        with transaction.atomic(using=using):
            return read()
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return None


@contextmanager
def _only_bitmaps(using: str, ms: int | None = None) -> Iterator[None]:
    """Allow only bitmap scans, so that a window is never read by another index of all jobs; and limit their time."""
    limit = {} if ms is None else {"statement_timeout": f"{ms}ms"}
    with _set(using, enable_indexscan="off", enable_indexonlyscan="off", **limit):
        yield


@contextmanager
def _set(using: str, **settings: str) -> Iterator[None]:
    """Change settings for the statements inside, and restore them after; a rollback restores them by itself."""
    before = rows(using, sql.session.SWAP_SETTINGS, [list(settings), list(settings.values())])
    yield
    rows(using, sql.session.SWAP_SETTINGS, [[row[0] for row in before], [row[1] for row in before]])
