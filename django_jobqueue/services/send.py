"""Sending a job, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Unpack, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from ..carriers import loading
from ..encoding import decode
from ..engine import announcements, given_ids, sql
from ..engine.databases import database, named
from ..engine.drafts import Checked, check_values
from ..engine.queues import check_exists
from ..engine.transactions import row_at_once
from ..exceptions import DuplicateJob, KeyRequired
from ..models import Job, Queue
from ..options import JOB_OPTIONS, check_on_duplicate
from ..policies import QueuePolicy
from ..process_memory import ProcessMemory
from ..send_options import JobOptions, OnDuplicate, Refusing, SendOptions, Sure
from ..states import OCCUPIED, JobState

TRIES = 10  # sends of a job whose place is taken and free again by turns

# The columns that send() returns from the database. It knows the others, or they have their defaults, or they are
# loaded when they are read.
_LEARNED = ("seq", "created_at")
_LEARNED_OF_LATER = (*_LEARNED, "start_after", "hold")
_FRESH: dict[str, Any] = {
    "state": JobState.CREATED.value,
    "attempt": 0,
    "retry_count": 0,
    "crashes": 0,
    "assignee": "",
    "started_at": None,
    "assigned_at": None,
    "expire_at": None,
    "lease_until": None,
    "heartbeat_at": None,
    "attempt_finished_at": None,
    "last_retry_at": None,
    "cancel_requested_at": None,
    "finalized_at": None,
    "delete_at": None,
    "claim_xmin": None,
    "moved_xid": None,
    "incarnation": None,
    "progress": None,
    "progress_text": "",
    "output": None,
    "error": "",
    "error_summary": None,
    "reason": "",
    "note": "",
    "fingerprint": "",
    "hold": None,
    "first_start_after": None,
    "source_id": None,
    "source_queue": "",
    "source_key": "",
}


@overload
def send(
    queue: str, data: Any = None, *, on_duplicate: Refusing = None, **options: Unpack[SendOptions]
) -> Job | None: ...
@overload
def send(queue: str, data: Any = None, *, on_duplicate: Sure, **options: Unpack[SendOptions]) -> Job: ...
def send(
    queue: str,
    data: Any = None,
    *,
    name: str | None = None,
    id: UUID | str | None = None,
    singleton_key: str | None = None,
    group_key: str | None = None,
    priority: int = 0,
    delay: float | timedelta | None = None,
    start_after: datetime | None = None,
    tags: Iterable[str] = (),
    throttle_seconds: int | None = None,
    on_duplicate: OnDuplicate = None,
    using: str | None = None,
    **options: Unpack[JobOptions],
) -> Job | None:
    """Store a job in the caller's transaction, and return it.

    Returns ``None`` if the queue's policy refuses the job, because another job has its slot. With
    ``on_duplicate="return"`` that other job is returned instead; with ``on_duplicate="ignore"`` the result is ``None``
    also for an ``id`` that exists.

    Raises ``QueueNotFound``, ``InvalidData``, ``InvalidOption``, ``KeyRequired`` on an ordered queue without a
    ``singleton_key``, and ``DuplicateJob`` for an ``id`` that exists in any queue. The caller's transaction stays
    usable after each of these.
    """
    using, queue = database(using), named(queue)
    if on_duplicate is not None:
        check_on_duplicate(on_duplicate)
    job = check_values(
        data,
        name,
        id,
        singleton_key,
        group_key,
        priority,
        delay,
        start_after,
        tags,
        throttle_seconds,
        options,
    )
    with loading(queue, [job]):
        stored = _store(queue, job, using)
    if stored is not None:
        announcements.sent(using, queue, [stored.pk])
        return stored
    if on_duplicate is None:
        _explain_refusal(queue, job, using)
        return None
    stored_queue = check_target(queue, [job], using)
    if on_duplicate == "ignore":
        return None
    return _existing_or_sent(stored_queue, job, using)


def check_options(given: Mapping[str, Any], *, singleton_key: Any = None, group_key: Any = None) -> None:
    """Check options of :func:`send` before there is a job to send. Raises ``InvalidOption``."""
    options = dict(given)
    tags, throttle = options.pop("tags", ()), options.pop("throttle_seconds", None)
    check_values(None, None, None, singleton_key, group_key, 0, None, None, tags, throttle, options)


def check_target(queue: str, jobs: list[Checked], using: str) -> Queue:
    stored = check_exists(queue, using)
    if stored.is_ordered:
        keyless = [place for place, job in enumerate(jobs) if not job.singleton_key]
        if keyless:
            raise KeyRequired(queue, keyless if len(jobs) > 1 else ())
    return stored


# ---------------------------------------------------------------------------------------------------- one job


class RefusingQueues(ProcessMemory):
    """Queues whose policy may refuse a job, by database and name: a guess which statement to try first.

    A queue is kept until the process ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[tuple[str, str]] = set()

    def forget(self) -> None:
        self.names.clear()


_refusing = RefusingQueues()


def _store(queue: str, job: Checked, using: str) -> Job | None:
    """Insert the job: with the short statement if that is enough, else with the one that handles every constraint."""
    careful = job.given_id or job.throttle_seconds is not None
    if not careful and (using, queue) not in _refusing.names:
        stored = _insert_one(queue, job, using, careful=False)
        if stored is not None:
            return stored
    stored = _insert_one(queue, job, using, careful=True)
    if stored is not None and not careful:
        _refusing.names.add((using, queue))
    return stored


def _insert_one(queue: str, job: Checked, using: str, *, careful: bool) -> Job | None:
    has_key = bool(job.singleton_key)
    columns, params = _columns(job)
    statement = _send_sql(columns, tuple(job.options), has_key, job.given_id, careful)
    params |= {"queue": queue, "has_key": has_key, **job.options}
    known = _known(queue, job)
    if job.given_id:
        row = given_ids.row_of_insert(using, job.id, statement, params)
    else:
        row = row_at_once(using, statement, params)
    if row is None:
        return None
    if "start_after" in columns:
        seq, _, start_after, _ = row
        known |= {"position": seq, "first_start_after": start_after}
        return Job.from_row(using, _LEARNED_OF_LATER, row, known)
    seq, created_at = row
    known |= {"position": seq, "start_after": created_at}
    return Job.from_row(using, _LEARNED, row, known)


def _columns(job: Checked) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The columns that do not get their defaults, and the parameters of their values."""
    params: dict[str, Any] = {"id": job.id}
    for name in ("data", "name", "singleton_key", "group_key", "priority", "tags", "carried"):
        value = getattr(job, name)
        if value:
            params[name] = value
    columns = [*params]
    if job.delay or job.start_after:
        columns += ("start_after", "first_start_after", "hold")
        params |= {"start_after": job.start_after, "delay": job.delay}
    if job.throttle_seconds is not None:
        columns.append("throttle_slot")
        params |= {"throttle_name": str(job.throttle_seconds), "throttle_seconds": job.throttle_seconds}
    return tuple(columns), params


_VALUES = {
    "data": "%(data)s::jsonb",
    "tags": "%(tags)s::text[]",
    "carried": "%(carried)s::jsonb",
    "start_after": sql.send.START_AFTER,
    "first_start_after": sql.send.START_AFTER,
    "hold": sql.send.HOLD_UNTIL,
    "throttle_slot": sql.send.THROTTLE_SLOT,
}


@lru_cache(maxsize=512)
def _send_sql(columns: tuple[str, ...], overridden: tuple[str, ...], keyed: bool, given_id: bool, careful: bool) -> str:
    inherited = [name for name in JOB_OPTIONS if name not in overridden]
    values = [_VALUES.get(name, f"%({name})s") for name in (*columns, *overridden)]
    conditions = [sql.send.NEVER_REFUSED_WITH_KEY if keyed else sql.send.NEVER_REFUSED]
    if careful:
        conditions = [sql.send.HAS_ITS_KEY] + [sql.send.UNLESS_ID_EXISTS] * given_id
    return sql.send.SEND.format(
        columns=", ".join([*columns, *overridden, *inherited]),
        values=", ".join([*values, *(f"q.{name}" for name in inherited)]),
        condition=" AND ".join(conditions),
        on_conflict="ON CONFLICT DO NOTHING" if careful else "",
        returning=", ".join(_LEARNED_OF_LATER if "start_after" in columns else _LEARNED),
    )


def _known(queue: str, job: Checked) -> dict[str, Any]:
    """The columns of a new job that need not be read from the database."""
    return {
        **_FRESH,
        "id": job.id,
        "queue_id": queue,
        "data": job.plain_data,
        "name": job.name,
        "singleton_key": job.singleton_key,
        "group_key": job.group_key,
        "priority": job.priority,
        "tags": [*job.tags],
        "attempts": [],
        "carried": decode(job.carried) if job.carried else None,
        **job.options,
    }


def _existing_or_sent(queue: Queue, job: Checked, using: str) -> Job:
    """The job that refused this one, or this one if the other has ended meanwhile."""
    for _ in range(TRIES):
        if (other := in_the_way(queue, job, using)) is not None:
            return other
        if (stored := _store(queue.name, job, using)) is not None:
            announcements.sent(using, queue.name, [stored.pk])
            return stored
    raise DuplicateJob(queue.name, ["its place is taken by a job that this transaction does not see"])


def _explain_refusal(queue: str, job: Checked, using: str) -> None:
    """Raise the reason why no job was stored, unless it is only that the policy's slot is taken."""
    check_target(queue, [job], using)
    if job.given_id and Job.objects.using(using).filter(pk=job.id).exists():
        raise DuplicateJob(queue, [f"a job with the id {job.id} exists already"])


def in_the_way(queue: Queue, job: Checked, using: str) -> Job | None:
    """The job that refuses this one: it has the same id, was sent in the same window, or has the policy's slot."""
    jobs = Job.objects.using(using)
    if job.given_id and (same := jobs.filter(pk=job.id).first()):
        return same
    lane = jobs.filter(queue=queue.name, singleton_key=job.singleton_key)
    if job.throttle_seconds is not None:
        window = lane.filter(throttle_slot__startswith=f"{job.throttle_seconds}:").order_by("-seq").first()
        if window is not None:
            return window
    if queue.policy in (QueuePolicy.SHORT, QueuePolicy.STATELY):
        return lane.in_state(JobState.CREATED).first()
    return lane.in_state(*OCCUPIED).first()


if TYPE_CHECKING:

    @overload
    async def asend(
        queue: str, data: Any = None, *, on_duplicate: Refusing = None, **options: Unpack[SendOptions]
    ) -> Job | None: ...
    @overload
    async def asend(queue: str, data: Any = None, *, on_duplicate: Sure, **options: Unpack[SendOptions]) -> Job: ...
    async def asend(queue: str, data: Any = None, **options: Any) -> Any: ...

else:
    asend = sync_to_async(send)
