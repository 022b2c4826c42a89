"""Deleting jobs that were kept long enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Greatest

from ..conf import get_settings
from ..engine import sql
from ..engine.databases import database
from ..engine.lanes import chunks, leaves_of
from ..engine.queues import check_exists, named
from ..engine.sweeps import AT_ONCE, Bounds, bounds, queues_with
from ..engine.transactions import execute, in_transaction, rows
from ..engine.transitions import lock
from ..exceptions import InvalidOption
from ..expressions import Seconds, StatementTimestamp
from ..identifiers import as_uuid
from ..models import Job
from ..options import check_moment
from ..policies import ORDERED
from ..querysets import JobQuerySet
from ..states import BLOCKING, Hold, JobState
from .operator import _delete_rows

DELETED_AT_ONCE = 1_000
LOOKED_AT_ONCE = 2_000


def cleanup(
    ttl: float | timedelta | None = None, *, queue: str | None = None, using: str | None = None
) -> dict[str, int]:
    """Delete old jobs and return how many of each queue; never one that blocks an ordered key, or waits behind one.

    With ``ttl`` completed jobs older than that and nothing else; without it, what the jobs' own retention says:
    finished and failed jobs, and jobs that waited too long. With ``JOBQUEUE["ARCHIVE"]`` finished jobs are left to the
    archive. Raises ``InvalidOption`` for a ``ttl`` that is not more than zero.
    """
    using = database(using)
    name = None if queue is None else check_exists(queue, using).name
    limits = bounds()
    if ttl is not None:
        return dict(_delete_older(using, name, _ttl(ttl), limits))
    deleted: Counter[str] = Counter()
    if not get_settings().ARCHIVE:
        deleted += _delete_ended(using, name, limits)
    deleted += _delete_overdue(using, name, limits)
    deleted += _delete_waiting(using, name, limits)
    return dict(deleted)


def _ttl(ttl: object) -> timedelta:
    if isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl == ttl and abs(ttl) < 10**11:
        ttl = timedelta(seconds=ttl)
    if not isinstance(ttl, timedelta) or ttl <= timedelta(0):
        raise InvalidOption("ttl", f"expected a time greater than zero, got {str(ttl)[:40]!r}")
    return ttl


def _places(using: str, which: str, name: str | None, start: str = "") -> dict[str, str]:
    """The queues that have such rows, and the part of the table each lies in."""
    return leaves_of(using, queues_with(using, which, start=start) if name is None else [name])


def _jobs(using: str) -> JobQuerySet:
    return Job.objects.using(using).all()


# ------------------------------------------------------------------------------------------------------- what ended


def _delete_ended(using: str, name: str | None, limits: Bounds) -> Counter[str]:
    deleted: Counter[str] = Counter()
    for queue, leaf in _places(using, sql.parts.IS_TO_DELETE, name).items():
        statement, since, number = sql.parts.at(leaf, sql.maintain.DELETE_OLD), "-infinity", DELETED_AT_ONCE
        while number == DELETED_AT_ONCE and not limits.are_reached():
            params = {"queue": queue, "since": since, "most": DELETED_AT_ONCE}
            ((number, since),) = in_transaction(using, partial(rows, using, statement, params))
            deleted[queue] += number
    return deleted


def _delete_older(using: str, name: str | None, ttl: timedelta, limits: Bounds) -> Counter[str]:
    """No index has the time at which jobs ended, so this reads them all: it is for a person, not for every minute."""
    old = _jobs(using).filter(state=JobState.COMPLETED, finalized_at__lte=StatementTimestamp() - ttl)
    if name is not None:
        old = old.in_queue(name)
    deleted: Counter[str] = Counter()
    last: UUID | None = None
    while not limits.are_reached():
        rest = old if last is None else old.filter(pk__gt=last)
        ids = list(rest.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
        deleted += _delete(using, ids, old)
        if len(ids) < AT_ONCE:
            break
        last = ids[-1]
    return deleted


def delete_archived(queue: str, jobs: Iterable[tuple[UUID | str, datetime]], *, using: str | None = None) -> int:
    """Delete finished jobs that the archive has verified, each given with the time it ended; return how many.

    One that was given another attempt meanwhile, blocks a key, or is in somebody's hands stays. Raises
    ``InvalidOption`` for what is no id or no time.
    """
    using, queue = database(using), named(queue)
    pairs = [(as_uuid(id), check_moment(ended, option="finalized_at")) for id, ended in jobs]
    statement, deleted = sql.parts.at(leaves_of(using, [queue])[queue], sql.maintain.DELETE_ARCHIVED), 0
    for some in chunks(pairs, DELETED_AT_ONCE):
        params = {"queue": queue, "ids": [id for id, _ in some], "ended": [ended for _, ended in some]}
        deleted += in_transaction(using, partial(execute, using, statement, params))
    return deleted


# ------------------------------------------------------------------------------------------------- what still waits


def _delete_overdue(using: str, name: str | None, limits: Bounds) -> Counter[str]:
    """Jobs that were due long ago and that nobody has even let go: few, because whoever fetches does that first."""
    deleted: Counter[str] = Counter()
    for queue, leaf in _places(using, sql.parts.IS_UNTIL, name).items():
        statement = sql.parts.at(leaf, sql.maintain.OLD_AMONG_OVERDUE)
        params = {"queue": queue, "most": DELETED_AT_ONCE}
        while not limits.are_reached():
            ids = [id for (id,) in in_transaction(using, partial(rows, using, statement, params))]
            gone = sum((_delete(using, some, _waited_too_long(using)) for some in chunks(ids, AT_ONCE)), Counter[str]())
            deleted += gone
            if len(ids) < DELETED_AT_ONCE or not gone:
                break
    return deleted


def _delete_waiting(using: str, name: str | None, limits: Bounds) -> Counter[str]:
    """Fetchable jobs that waited too long; a sweep with bounds goes on where the last one stopped."""
    begin, limits.place = limits.place or {}, None
    deleted: Counter[str] = Counter()
    for queue, leaf in _places(using, sql.parts.IS_FETCHABLE, name, begin.get("queue", "")).items():
        place = begin if queue == begin.get("queue") else {}
        begin = {}
        for last, ids in _looked_through(using, queue, leaf, place.get("after", _TOP), limits):
            for some in chunks(ids, AT_ONCE):
                deleted += _delete(using, some, _waited_too_long(using))
            if limits.stops_looking(queue=queue, after=last):
                return deleted
    return deleted


_TOP = [2**31, 0]  # a priority above all


def _looked_through(
    using: str, queue: str, leaf: str, after: list[int], limits: Bounds
) -> Iterator[tuple[list[int], list[UUID]]]:
    """The fetchable jobs of a queue in their order, some at a time: how far that was, and which are too old."""
    statement, number = sql.parts.at(leaf, sql.maintain.OLD_AMONG_FETCHABLE), LOOKED_AT_ONCE
    while number == LOOKED_AT_ONCE:
        priority, position = after
        params = {"queue": queue, "priority": priority, "position": position, "most": LOOKED_AT_ONCE}
        ((number, last, ids),) = in_transaction(using, partial(rows, using, statement, params))
        limits.looked(number)
        if number:
            yield last, ids
            after = last


def _waited_too_long(using: str) -> JobQuerySet:
    """What waits behind a blocked key, or blocks one, waits until a person decides."""
    blocker = Job.objects.filter(
        queue=OuterRef("queue"), singleton_key=OuterRef("singleton_key"), policy=ORDERED, state__in=sorted(BLOCKING)
    )
    since = Greatest(F("created_at"), F("start_after"))
    waiting = _jobs(using).eligible().exclude(hold=Hold.LANE).exclude(Q(policy=ORDERED) & Exists(blocker))
    return waiting.annotate(since=since).filter(since__lte=StatementTimestamp() - Seconds("retention_seconds"))


def _delete(using: str, ids: list[UUID], old: JobQuerySet) -> Counter[str]:
    """Delete those of these jobs that are old now that they are locked; their lanes go on."""
    if not ids:
        return Counter()

    def work() -> Counter[str]:
        locked, jobs = lock(using, ids, skip_locked=True)
        still = set(old.filter(pk__in=[job.pk for job in jobs]).values_list("pk", flat=True))
        jobs = [job for job in jobs if job.pk in still and not (job.policy == ORDERED and job.state in BLOCKING)]
        _delete_rows(using, jobs, locked)
        return Counter(job.queue_id for job in jobs)

    return in_transaction(using, work)
