"""Sending many jobs at once: all of them or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connections, transaction
from psycopg import errors

from ..carriers import loading
from ..engine import announcements, given_ids, sql
from ..engine.databases import Rows, database, named, rows
from ..engine.drafts import Checked, check_items
from ..engine.lanes import chunks
from ..engine.transactions import again_after_conflict, in_transaction, joins
from ..exceptions import DuplicateJob
from ..models import Job, Queue
from ..options import JOB_OPTIONS, check_on_duplicate
from ..policies import LANED, ORDERED, QueuePolicy
from ..send_options import Item, OnDuplicate
from ..states import Hold
from .send import check_target, in_the_way


def send_many(
    queue: str,
    items: Iterable[Item],
    *,
    on_duplicate: OnDuplicate = None,
    using: str | None = None,
) -> list[UUID | None]:
    """Store many jobs at once, all or none, and return their ids in the order of the items.

    Each item is a dict with ``data`` and the options of :func:`send`; its type is :class:`Item`. Raises the exceptions
    of :func:`send`, with a message that names every bad item, and ``DuplicateJob`` if the queue's policy refuses a job.
    With ``on_duplicate="ignore"`` the jobs that are refused are left out, and the result holds ``None`` in their
    places; with ``"return"`` it holds the ids of the jobs that refused them.
    """
    if on_duplicate is not None:
        check_on_duplicate(on_duplicate)
    return _send_many(queue, check_items(items), on_duplicate, using)


class Source(NamedTuple):
    """The job that a new job is made from: its id, queue and key, and why it failed."""

    id: UUID
    queue: str
    key: str
    error_summary: str | None = None


def send_again(
    queue: str, items: Iterable[Mapping[str, Any]], sources: Sequence[Source], *, using: str | None = None
) -> list[UUID | None]:
    """Store new jobs made from earlier ones; each new job refers to its source. A restore from the archive calls this.

    The items are those of :func:`send_many`, one for each source. Jobs that are refused are left out, and the result
    holds ``None`` in their places. Raises the exceptions of :func:`send_many`.
    """
    jobs = check_items(items)
    for job, source in zip(jobs, sources, strict=True):
        job.source = source
    return _send_many(queue, jobs, "ignore", using)


def _send_many(queue: str, jobs: list[Checked], on_duplicate: OnDuplicate, using: str | None) -> list[UUID | None]:
    using, queue = database(using), named(queue)
    stored = check_target(queue, jobs, using)
    if not jobs:
        return []
    with loading(queue, jobs):
        found, fresh = _with_ids_locked(jobs, partial(_store_many, stored, jobs, on_duplicate, using), using)
    announcements.sent(using, queue, fresh)
    return found


def staged_commit() -> dict[str, Any]:
    """The statements that turn the rows staged by Spark's tasks into jobs, for a process without Django."""
    return asdict(sql.staging.COMMIT)


_Found = tuple[list[UUID | None], list[UUID]]  # the answer for each item, and the ids that were stored


def _with_ids_locked(jobs: list[Checked], work: Callable[..., _Found], using: str) -> _Found:
    """Run ``work`` in the caller's transaction or in its own; with given ids, pass it those that are taken."""
    ids = given_ids.to_lock(jobs)
    if joins(connections[using]):
        return work(rows(using, *given_ids.locking(ids))) if ids else work()
    if not ids:
        return again_after_conflict(using, work)
    return in_transaction(using, work, [given_ids.locking(ids)])


def _store_many(
    queue: Queue, jobs: list[Checked], on_duplicate: OnDuplicate, using: str, known: Rows | None = None
) -> _Found:
    """Store jobs. ``known`` are ids that a job has: they were not locked, and stay refused if that job is deleted."""
    taken = given_ids.taken(known or []) | _existing(jobs, using)
    if on_duplicate is not None:
        return _insert_others(queue, jobs, on_duplicate, taken, using)
    _refuse_repeated(queue.name, jobs, taken)
    (_copy_or_refuse if _may_collide(queue, jobs) else _copy)(queue, jobs, using)
    ids = [job.id for job in jobs]
    return [*ids], ids


_ALWAYS = ("id", "queue_id", "policy", "singleton_key", "data", *JOB_OPTIONS)
_IF_GIVEN = ("name", "priority", "group_key", "tags", "carried")
_TIMED = ("start_after", "first_start_after", "throttle_slot")
_NUMBERED = ("seq", "position")
_SOURCE = ("source_id", "source_queue", "source_key", "error_summary")
_AT_ONCE = 500

_Stored = tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]  # columns and rows


def _may_collide(queue: Queue, jobs: list[Checked]) -> bool:
    """Whether a constraint could refuse one of these jobs."""
    if any(job.given_id or job.throttle_seconds for job in jobs):
        return True
    return any(_has_slot(queue.policy, job.singleton_key) for job in jobs)


def _has_slot(policy: str, key: str) -> bool:
    """Whether the policy limits how many jobs of this key may wait."""
    if policy == QueuePolicy.STANDARD:
        return bool(key)
    return policy not in (ORDERED, QueuePolicy.SINGLETON)


def _refuse_repeated(queue: str, jobs: list[Checked], taken: set[UUID]) -> None:
    given = Counter(job.id for job in jobs if job.given_id)
    problems = [f"the id {id} is given {n} times" for id, n in given.items() if n > 1]
    problems += [f"a job with the id {id} exists already" for id in sorted(taken)]
    if problems:
        raise DuplicateJob(queue, problems)


def _columns_and_rows(queue: Queue, jobs: list[Checked], using: str, *, births: bool) -> _Stored:
    """The columns and rows to store for these jobs, without columns in which all jobs have the default.

    Times are relative to the database's clock, which is read only if needed.
    """
    timed = any(job.delay or job.start_after or job.throttle_seconds for job in jobs)
    now = rows(using, sql.session.CLOCK)[0][0] if timed else None
    columns, stored = _ALWAYS, _rows(queue, jobs)
    for name in _IF_GIVEN:
        values = [getattr(job, name) for job in jobs]
        if any(values):
            columns, stored = (*columns, name), _wider(stored, zip(values, strict=True))
    holds = list(_births(queue, jobs, now) if births else (_until(job, now) for job in jobs))
    if any(holds):
        columns, stored = (*columns, "hold"), _wider(stored, zip(holds, strict=True))
    if now is not None:
        columns, stored = columns + _TIMED, _wider(stored, (_times(job, now) for job in jobs))
    if any(job.source for job in jobs):
        columns, stored = columns + _SOURCE, _wider(stored, (job.source or (None, "", "", None) for job in jobs))
    return columns, stored


def _wider(stored: Iterable[tuple[Any, ...]], more: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return (row + tuple(further) for row, further in zip(stored, more, strict=True))


def _rows(queue: Queue, jobs: list[Checked]) -> Iterator[tuple[Any, ...]]:
    inherited = tuple(getattr(queue, name) for name in JOB_OPTIONS)
    name, policy = queue.name, queue.policy
    for job in jobs:
        options = inherited
        if job.options:
            options = tuple(job.options.get(key, value) for key, value in zip(JOB_OPTIONS, inherited, strict=True))
        yield (job.id, name, policy, job.singleton_key, job.data, *options)


def _due_at(job: Checked, now: datetime) -> datetime | None:
    return job.start_after or (now + timedelta(seconds=job.delay) if job.delay else None)


def _until(job: Checked, now: datetime | None) -> str | None:
    due_at = None if now is None else _due_at(job, now)
    return Hold.UNTIL.value if due_at is not None and now is not None and due_at > now else None


def _births(queue: Queue, jobs: list[Checked], now: datetime | None) -> Iterator[str | None]:
    """The initial hold of each job: all due jobs of a lane but the first are stored on hold.

    That is safe, because they are committed together with the first.
    """
    first: dict[str, Checked] = {}
    if queue.policy in LANED:
        for job in jobs:
            leader = first.get(job.singleton_key)
            passes = leader is None or (queue.policy != ORDERED and job.priority > leader.priority)
            if passes and _until(job, now) is None:
                first[job.singleton_key] = job
    for job in jobs:
        waits = first and first.get(job.singleton_key, job) is not job
        yield _until(job, now) or (Hold.LANE.value if waits else None)


def _times(job: Checked, now: datetime) -> tuple[datetime, datetime | None, str | None]:
    due_at, every = _due_at(job, now), job.throttle_seconds
    slot = None if every is None else f"{every}:{int(now.timestamp() // every)}"
    return due_at or now, due_at, slot


def _in_order_of_keys(queue: Queue, using: str, columns: tuple[str, ...], stored: Iterable[tuple[Any, ...]]) -> _Stored:
    """The same rows, numbered in the order given, but sorted by the values that a constraint could refuse.

    So batches with the same keys wait for each other in one order only, and never deadlock. Of rows for the same slot
    the first one given is stored first.
    """
    unnumbered = list(stored)
    numbers = rows(using, sql.send.NUMBERS, [len(unnumbered)])
    numbered = [(*row, number, number) for row, (number,) in zip(unnumbered, numbers, strict=True)]
    key, id = columns.index("singleton_key"), columns.index("id")
    slot = columns.index("throttle_slot") if "throttle_slot" in columns else None

    def place(row: tuple[Any, ...]) -> tuple[str, int, UUID]:
        throttled = slot is not None and row[slot] is not None
        return row[key], row[-1] if throttled or _has_slot(queue.policy, row[key]) else 0, row[id]

    return columns + _NUMBERED, sorted(numbered, key=place)


def _copy(queue: Queue, jobs: list[Checked], using: str) -> None:
    """Store jobs with COPY, the fastest way."""
    columns, stored = _columns_and_rows(queue, jobs, using, births=True)
    if _may_collide(queue, jobs):
        columns, stored = _in_order_of_keys(queue, using, columns, stored)
    connection = connections[using]
    statement = sql.send.SEND_MANY.format(columns=", ".join(columns))
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.copy(statement) as copy:
        write = copy.write_row
        for row in stored:
            write(row)


def _copy_or_refuse(queue: Queue, jobs: list[Checked], using: str) -> None:
    """Store jobs with COPY; if a constraint refuses some, store nothing and raise an error that names them all."""
    try:
        with transaction.atomic(using=using):
            _copy(queue, jobs, using)
    except IntegrityError as error:
        if not isinstance(error.__cause__, errors.UniqueViolation):
            raise
        _insert_others(queue, jobs, None, _existing(jobs, using), using)


def _insert_others(
    queue: Queue, jobs: list[Checked], on_duplicate: OnDuplicate, taken: set[UUID], using: str
) -> _Found:
    """INSERT the jobs that no constraint refuses; roll all of them back if a refusal is an error."""
    with transaction.atomic(using=using):
        fresh = {job.id: place for place, job in reversed(list(enumerate(jobs))) if job.id not in taken}
        stored = _insert(queue, [jobs[place] for place in sorted(fresh.values())], using)
        found = [job.id if job.id in stored and fresh[job.id] == place else None for place, job in enumerate(jobs)]
        refused = [place for place, id in enumerate(found) if id is None]
        fresh_ids = [id for id in found if id is not None]
        if refused and on_duplicate is None:
            raise DuplicateJob(queue.name, [_taken(place, jobs[place]) for place in refused])
        for place in refused if on_duplicate == "return" else ():
            other = in_the_way(queue, jobs[place], using)
            found[place] = other.pk if other else None
    return found, fresh_ids


def _existing(jobs: list[Checked], using: str) -> set[UUID]:
    """The given ids that exist in any queue: the database would refuse only those of this queue."""
    given = [job.id for job in jobs if job.given_id]
    return set(Job.objects.using(using).filter(pk__in=given).values_list("pk", flat=True)) if given else set()


def _taken(place: int, job: Checked) -> str:
    if job.given_id:
        return f"items[{place}]: the id {job.id} or its place in the queue is taken"
    key = f" of the key {job.singleton_key!r}" if job.singleton_key else ""
    return f"items[{place}]: the place{key} in the queue is taken"


def _insert(queue: Queue, jobs: list[Checked], using: str) -> set[UUID]:
    """INSERT jobs, and return the ids of those stored.

    No job is stored on hold behind another here, because that other job may be refused.
    """
    columns, all_rows = _in_order_of_keys(queue, using, *_columns_and_rows(queue, jobs, using, births=False))
    row_values = "(" + ", ".join(["%s"] * len(columns)) + ")"
    stored: set[UUID] = set()
    for some in chunks(list(all_rows), _AT_ONCE):
        statement = sql.send.INSERT_OTHERS.format(
            columns=", ".join(columns), values=", ".join([row_values] * len(some))
        )
        stored.update(row[0] for row in rows(using, statement, [value for row in some for value in row]))
    return stored


asend_many = sync_to_async(send_many)
