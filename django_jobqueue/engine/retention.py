"""Deleting jobs that were kept long enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Greatest

from ..expressions import Seconds, StatementTimestamp
from ..models import Job
from ..policies import ORDERED
from ..querysets import JobQuerySet
from ..states import BLOCKING, Hold, JobState
from . import sql
from .databases import rows
from .lanes import chunks, leaves_of
from .sweeps import AT_ONCE, Bounds, queues_with
from .transactions import at, in_transaction
from .transitions import delete_rows, lock

DELETED_AT_ONCE = 1_000
LOOKED_AT_ONCE = 2_000


def _places(using: str, which: str, name: str | None, start: str = "") -> dict[str, str]:
    """The queues that have such rows, each with its part of the job table."""
    return leaves_of(using, queues_with(using, which, start=start) if name is None else [name])


def _jobs(using: str) -> JobQuerySet:
    return Job.objects.using(using).all()


def delete_ended(using: str, name: str | None, limits: Bounds) -> Counter[str]:
    deleted: Counter[str] = Counter()
    for queue, leaf in _places(using, sql.parts.IS_TO_DELETE, name).items():
        statement, since, number = at(leaf, sql.maintain.DELETE_OLD), "-infinity", DELETED_AT_ONCE
        while number == DELETED_AT_ONCE and not limits.are_reached():
            params = {"queue": queue, "since": since, "most": DELETED_AT_ONCE}
            ((number, since),) = in_transaction(using, partial(rows, using, statement, params))
            deleted[queue] += number
    return deleted


def delete_older(using: str, name: str | None, ttl: timedelta, limits: Bounds) -> Counter[str]:
    """Delete completed jobs older than ``ttl``. No index has the time at which jobs ended, so this reads all jobs."""
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


def delete_overdue(using: str, name: str | None, limits: Bounds) -> Counter[str]:
    """Delete jobs that were due long ago and still have their hold: few, because every fetch lifts holds first."""
    deleted: Counter[str] = Counter()
    for queue, leaf in _places(using, sql.parts.IS_UNTIL, name).items():
        statement = at(leaf, sql.maintain.OLD_AMONG_OVERDUE)
        params = {"queue": queue, "most": DELETED_AT_ONCE}
        while not limits.are_reached():
            ids = [id for (id,) in in_transaction(using, partial(rows, using, statement, params))]
            gone = sum((_delete(using, some, _waited_too_long(using)) for some in chunks(ids, AT_ONCE)), Counter[str]())
            deleted += gone
            if len(ids) < DELETED_AT_ONCE or not gone:
                break
    return deleted


def delete_waiting(using: str, name: str | None, limits: Bounds) -> Counter[str]:
    """Delete fetchable jobs that waited too long; a sweep with bounds continues where the last one stopped."""
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
    """Read the fetchable jobs of a queue in order, some at a time; yield the place reached, and the old ones."""
    statement, number = at(leaf, sql.maintain.OLD_AMONG_FETCHABLE), LOOKED_AT_ONCE
    while number == LOOKED_AT_ONCE:
        priority, position = after
        params = {"queue": queue, "priority": priority, "position": position, "most": LOOKED_AT_ONCE}
        ((number, last, ids),) = in_transaction(using, partial(rows, using, statement, params))
        limits.looked(number)
        if number:
            yield last, ids
            after = last


def _waited_too_long(using: str) -> JobQuerySet:
    """Jobs that waited too long, except those that block a key or wait behind one: an operator decides on these."""
    blocker = Job.objects.filter(
        queue=OuterRef("queue"), singleton_key=OuterRef("singleton_key"), policy=ORDERED, state__in=sorted(BLOCKING)
    )
    since = Greatest(F("created_at"), F("start_after"))
    waiting = _jobs(using).eligible().exclude(hold=Hold.LANE).exclude(Q(policy=ORDERED) & Exists(blocker))
    return waiting.annotate(since=since).filter(since__lte=StatementTimestamp() - Seconds("retention_seconds"))


def _delete(using: str, ids: list[UUID], old: JobQuerySet) -> Counter[str]:
    """Lock these jobs, and delete those that are still old; their lanes continue."""
    if not ids:
        return Counter()

    def work() -> Counter[str]:
        locked, jobs = lock(using, ids, skip_locked=True)
        still = set(old.filter(pk__in=[job.pk for job in jobs]).values_list("pk", flat=True))
        jobs = [job for job in jobs if job.pk in still and not (job.policy == ORDERED and job.state in BLOCKING)]
        delete_rows(using, jobs, locked)
        return Counter(job.queue_id for job in jobs)

    return in_transaction(using, work)
