"""Verbs for operators: retry, skip, cancel, delete, purge and reschedule jobs, pause and resume queues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import QuerySet
from psycopg.errors import UniqueViolation

from ..conf import get_encoder, get_settings
from ..database_errors import explain
from ..encoding import encode
from ..engine import announcements, lanes, sql
from ..engine.announcements import wake
from ..engine.claims import Target, database_of, id_of
from ..engine.databases import database, execute, named, rows
from ..engine.lanes import lanes_of
from ..engine.queues import check_exists, no_queue
from ..engine.records import Note, keep_record, noted
from ..engine.retry_decision import retrying_beside
from ..engine.snapshots import CHANGED, Seen, check_snapshot
from ..engine.transactions import in_transaction
from ..engine.transitions import (
    Answers,
    Become,
    Change,
    Decision,
    Moved,
    Refusal,
    delete_rows,
    lock,
    move,
)
from ..exceptions import InvalidOption, InvalidTransition, JobNotFound
from ..expressions import StatementTimestamp
from ..identifiers import as_uuid
from ..models import Job, Queue
from ..options import check_moment, check_state
from ..policies import LANED, QueuePolicy
from ..redaction import redacted
from ..states import FINAL, OCCUPIED, RETRIABLE, SKIPPABLE, FailureReason, JobState, leads_to
from ..text import check_tags

Jobs = Target | Iterable[Target] | QuerySet[Job]
KEEP: Any = object()
AT_ONCE = 500
EDITS_KEPT = 20


@dataclass(slots=True)
class Outcome:
    """The jobs that an operator's verb moved, and those that it refused, with the reason."""

    moved: list[UUID] = field(default_factory=list)
    refused: dict[UUID, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.moved)

    def __bool__(self) -> bool:
        return bool(self.moved)


@dataclass(slots=True)
class Cancellation:
    """The result of :func:`cancel`.

    ``cancelled`` are the jobs that it reached, ``unknown`` those that do not exist or were final, and ``previous`` the
    state of each before.
    """

    cancelled: list[UUID] = field(default_factory=list)
    unknown: list[UUID] = field(default_factory=list)
    previous: dict[UUID, JobState] = field(default_factory=dict)


def retry(
    jobs: Jobs,
    *,
    data: Any = KEEP,
    operator: str = "",
    reason: str = "",
    record: bool = True,
    snapshot: str | None = None,
    queue: str | None = None,
    using: str | None = None,
) -> Outcome:
    """Give jobs that failed for good another attempt.

    A retried job is fetchable at once; on an ordered queue it runs before all others of its key. Its retry limit is
    raised by one, and its data is replaced by ``data`` if given. A job is refused if another job has taken its slot in
    the queue's policy. With a ``snapshot``, see :func:`current_snapshot`, jobs that failed after it are refused.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``, with the data before and after,
    unless ``record`` is false because the caller records it.

    For a single job, ``JobNotFound`` and ``InvalidTransition`` are raised. For several jobs, the result lists the
    refused ones. Raises ``InvalidData``.
    """
    note = noted(operator, reason)
    settings = get_settings()
    text = None
    if data is not KEEP:
        text = encode(data, max_bytes=settings.MAX_DATA_BYTES, max_depth=settings.MAX_DEPTH, encoder=get_encoder())
    using, queue = database(using), None if queue is None else named(queue)
    decision = Retry(text)
    ids, alone = _ids(jobs)
    allowing = IfAllowed(decision, RETRIABLE, JobState.RETRY, _seen("retry", snapshot, using), alone)
    outcome = _operate(ids, allowing, queue, using)
    if record:
        edited = _edited(decision.edits, outcome.moved)
        keep_record("retry", note, using, queue=queue, moved=outcome.moved, refused=outcome.refused, details=edited)
    return outcome


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt for jobs that failed for good, with this data if any; refused if the slot is taken."""

    data: str | None
    edits: dict[str, Any] = field(default_factory=dict)  # the data before and after, noted while the jobs are locked

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        taken = _slots_taken(using, jobs)
        if self.data is not None:
            self.edits.update(_edits(using, jobs, json.loads(self.data)))
        change = Change(JobState.RETRY, delay=0, more_retries=1, crashes=0, data=self.data)
        refused = {id: Refusal(f"its place is taken by job {other}") for id, other in taken.items()}
        return dict.fromkeys((job.pk for job in jobs), change) | refused


def skip(
    jobs: Jobs,
    *,
    reason: str,
    operator: str = "",
    record: bool = True,
    snapshot: str | None = None,
    queue: str | None = None,
    using: str | None = None,
) -> Outcome:
    """End jobs that failed for good or wait for a retry, with a reason; their keys continue with the next job.

    With a ``snapshot``, see :func:`current_snapshot`, jobs whose attempt failed after it are refused. Raises
    ``InvalidOption`` without a reason. For a single job, ``JobNotFound`` and ``InvalidTransition`` are raised; for
    several jobs, the result lists the refused ones.
    """
    note = noted(operator, reason)
    if not note.reason.strip():
        raise InvalidOption("reason", "expected a text that says why", hint="It is kept with the job.")
    text = f"{note.operator}: {note.reason}" if note.operator else note.reason
    using, queue = database(using), None if queue is None else named(queue)
    decision = Become(Change(JobState.STOPPED, reason=FailureReason.SKIPPED, note=text))
    ids, alone = _ids(jobs)
    allowing = IfAllowed(decision, SKIPPABLE, JobState.STOPPED, _seen("skip", snapshot, using), alone)
    outcome = _operate(ids, allowing, queue, using)
    if record:
        keep_record("skip", note, using, queue=queue, moved=outcome.moved, refused=outcome.refused)
    return outcome


def cancel(
    ids: Jobs = (),
    *,
    tags: Iterable[str] = (),
    force: bool = False,
    operator: str = "",
    reason: str = "",
    record: bool = True,
    snapshot: str | None = None,
    queue: str | None = None,
    using: str | None = None,
) -> Cancellation:
    """Cancel these jobs, and all jobs that carry every one of these tags.

    A waiting job ends at once. An active job becomes cancelling until its worker answers. With ``force`` an active job
    is stopped at once; its handler and the next job of its key may then overlap. Jobs that do not exist or are final
    are listed in the result, and so are jobs sent after the ``snapshot``, see :func:`current_snapshot`.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``, unless ``record`` is false. Raises
    ``InvalidOption`` if neither ids nor tags are given.
    """
    using, queue = database(using), None if queue is None else named(queue)
    note = noted(operator, reason)
    job_ids, tagged = _selection("cancel", ids, tags)
    decision = Cancel(force, _seen("cancel", snapshot, using))

    def work() -> Cancellation:
        moved = move(using, _ids_of(job_ids, tagged, queue, using), decision, queue=queue)
        kept = {job.pk for job in moved.jobs if job.state == JobState.CANCELLING and job.pk not in moved.changes}
        result = Cancellation(
            cancelled=[job.pk for job in moved.jobs if job.pk in moved.changes or job.pk in kept],
            previous={job.pk: JobState(job.state) for job in moved.jobs},
        )
        reached = set(result.cancelled)
        meant = dict.fromkeys(job_ids) | dict.fromkeys(job.pk for job in moved.jobs)
        result.unknown = [id for id in meant if id not in reached]
        if record:
            refused = {id: not_cancelled(result.previous.get(id)) for id in result.unknown}
            details = {"force": True} if force else {}
            keep_record("cancel", note, using, queue=queue, moved=result.cancelled, refused=refused, details=details)
        return result

    return in_transaction(using, work)


def not_cancelled(state: JobState | None) -> str:
    """Why a job was not cancelled. A waiting or running job always is, unless it changed after it was shown."""
    if state is None:
        return "there is no such job"
    return CHANGED if state in OCCUPIED else f"it is {state}"


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends waiting jobs, and asks the workers of running jobs to stop them; with ``force`` ends running jobs too."""

    force: bool
    seen: Seen | None

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        later = self.seen.changed([job.pk for job in jobs], using) if self.seen else ()
        changes = {job.pk: self._change(job) for job in jobs if job.pk not in later}
        return {id: change for id, change in changes.items() if change is not None}

    def _change(self, job: Job) -> Change | None:
        match JobState(job.state):
            case JobState.CREATED:
                return Change(JobState.CANCELLED, reason=FailureReason.CANCELLED)
            case JobState.RETRY | JobState.UNKNOWN_RETRY:
                return Change(JobState.STOPPED, reason=FailureReason.CANCELLED)
            case JobState.ACTIVE | JobState.CANCELLING if self.force:
                return Change(JobState.STOPPED, reason=FailureReason.CANCELLED, outcome="cancelled")
            case JobState.ACTIVE:
                return Change(JobState.CANCELLING, reason=FailureReason.CANCELLED)
            case _:
                return None


def delete(
    ids: Jobs = (),
    *,
    tags: Iterable[str] = (),
    operator: str = "",
    reason: str = "",
    queue: str | None = None,
    using: str | None = None,
) -> int:
    """Delete jobs that have ended, all or none, and return their number; keys that they blocked continue.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``. Raises ``InvalidOption`` without ids
    and tags, ``JobNotFound`` for an id that does not exist, and ``InvalidTransition`` if a job waits or runs.
    """
    using, queue = database(using), None if queue is None else named(queue)
    note = noted(operator, reason)
    job_ids, tagged = _selection("delete", ids, tags)

    def work() -> int:
        locked, jobs = lock(using, _ids_of(job_ids, tagged, queue, using), queue=queue)
        missing = set(job_ids) - {job.pk for job in jobs}
        if missing:
            raise JobNotFound(sorted(missing))
        for job in jobs:
            if job.state not in FINAL:
                raise InvalidTransition(job_id=job.pk, state=job.state, wanted="deleted", allowed=FINAL)
        delete_rows(using, jobs, locked)
        keep_record("delete", note, using, queue=queue, moved=[job.pk for job in jobs])
        return len(jobs)

    return in_transaction(using, work)


def delete_each(ids: list[UUID], *, snapshot: str | None = None, using: str) -> Outcome:
    """Delete the jobs that have ended, and refuse the others; :func:`delete` deletes all or none."""
    seen = _seen("delete", snapshot, using)

    def work() -> Outcome:
        locked, jobs = lock(using, ids)
        later = seen.changed(ids, using) if seen else ()
        refused = dict.fromkeys(set(ids) - {job.pk for job in jobs}, "there is no such job")
        refused |= {job.pk: f"it is {job.state}" for job in jobs if job.state not in FINAL}
        refused |= {id: CHANGED for id in later if id not in refused}
        going = [job for job in jobs if job.pk not in refused]
        delete_rows(using, going, locked)
        return Outcome([job.pk for job in going], refused)

    return in_transaction(using, work)


def purge(
    queue: str, state: str | None = None, *, operator: str = "", reason: str = "", using: str | None = None
) -> int:
    """Delete all jobs of a queue, or all in one state, and return their number; running jobs are deleted too.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``. Raises ``QueueNotFound``, and
    ``InvalidOption`` for a state that does not exist.
    """
    using = database(using)
    note = noted(operator, reason)
    if state is not None:
        state = check_state(state)
    queue = check_exists(queue, using).name

    def work() -> int:
        gone = rows(using, sql.transitions.PURGE, {"queue": queue, "state": state})
        # Only after the commit can another statement see which jobs waited behind the deleted ones.
        if freed := {lanes.Lane(queue, policy, key) for policy, key, *_ in gone if policy in LANED}:
            lanes.release_later(using, freed)
        announcements.keys_released(using, [(queue, key) for _, key, blocked, _ in gone if blocked])
        number: int = sum(number for *_, number in gone)
        keep_record("purge", note, using, queue=queue, count=number, details={"state": state} if state else {})
        return number

    return in_transaction(using, work)


def pause(queue: str, *, operator: str = "", reason: str = "", using: str | None = None) -> None:
    """Pause a queue: its jobs are no longer fetched. Running jobs go on, and sends are accepted.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``. Raises ``QueueNotFound``.
    """
    _switch("pause", queue, StatementTimestamp(), noted(operator, reason), database(using))


def resume(queue: str, *, operator: str = "", reason: str = "", using: str | None = None) -> None:
    """Resume a paused queue: its jobs are fetched again.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``. Raises ``QueueNotFound``.
    """
    using = database(using)
    _switch("resume", queue, None, noted(operator, reason), using)
    wake(using, [named(queue)])


def _switch(verb: str, queue: object, paused_at: StatementTimestamp | None, note: Note, using: str) -> None:
    queues = Queue.objects.using(using).filter(pk=named(queue))
    with transaction.atomic(using=using):
        is_new = queues.filter(paused_at__isnull=paused_at is not None).update(paused_at=paused_at)
        if is_new:
            keep_record(verb, note, using, queue=named(queue))
    if not is_new and not queues.exists():
        raise no_queue(named(queue), using)


# ------------------------------------------------------------------------------------------------- what they share


def _seen(verb: str, snapshot: str | None, using: str) -> Seen | None:
    return None if snapshot is None else Seen(verb, check_snapshot(snapshot, using))


@dataclass(frozen=True, slots=True)
class IfAllowed:
    """Applies a decision to jobs in the states that the verb takes, if they have not changed since they were shown.

    Other jobs are refused; for a single job in another state it raises ``InvalidTransition``.
    """

    decision: Decision
    allowed: frozenset[JobState]
    wanted: JobState
    seen: Seen | None
    alone: bool

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        later = self.seen.changed([job.pk for job in jobs], using) if self.seen else ()
        answers: Answers = {}
        fitting = []
        for job in jobs:
            if job.state in self.allowed and job.pk not in later:
                fitting.append(job)
            elif job.state in self.allowed:
                answers[job.pk] = Refusal(CHANGED)
            elif self.alone:
                raise InvalidTransition(
                    job_id=job.pk, state=job.state, wanted=self.wanted.value, allowed=self.allowed
                )  # fmt: skip
            else:
                answers[job.pk] = Refusal(f"it is {job.state}")
        return answers | self.decision.answers(using, fitting)


def _operate(ids: list[UUID], decision: IfAllowed, queue: str | None, using: str) -> Outcome:
    """Move many jobs, a bounded number at a time; a job that cannot move is refused and does not stop the others."""
    outcome = Outcome()
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        moved = _despite_collisions(partial(move, using, some, decision, queue=queue), using)
        known = {job.pk for job in moved.jobs}
        missing = [id for id in some if id not in known]
        if missing and decision.alone:
            raise JobNotFound(missing)
        outcome.moved += moved.changes
        outcome.refused |= moved.refused | dict.fromkeys(missing, "there is no such job")
    return outcome


def _despite_collisions(work: Callable[[], Moved], using: str) -> Moved:
    """Run ``work``, and again if a job that was sent meanwhile has taken a slot: the next run sees that job."""
    for tries_left in reversed(range(5)):
        try:
            with transaction.atomic(using=using) if not connections[using].get_autocommit() else nullcontext():
                return work()
        except OperationalError as error:
            explain(error, using)
            raise
        except IntegrityError as error:
            if not tries_left or not isinstance(error.__cause__, UniqueViolation):
                raise
    raise AssertionError("unreachable")


def _slots_taken(using: str, jobs: list[Job]) -> dict[UUID, UUID]:
    """Failed jobs that cannot be retried, each with the job that has its slot in the queue's policy."""
    taken = retrying_beside(using, jobs)
    unique = [
        job
        for job in jobs
        if job.policy == QueuePolicy.EXCLUSIVE or (job.policy == QueuePolicy.STANDARD and job.singleton_key)
    ]
    holders = Job.objects.using(using).filter(state__in=sorted(OCCUPIED))
    seen: dict[tuple[str, str], UUID] = {}
    for job in unique:
        lane = (job.queue_id, job.singleton_key)
        other = seen.get(lane) or holders.in_lane_of(job).values_list("pk", flat=True).first()
        if other is not None:
            taken[job.pk] = other
        else:
            seen[lane] = job.pk
    for job in jobs:  # of two failed jobs of one key on a stately queue only one can wait
        if job.policy == QueuePolicy.STATELY and job.pk not in taken:
            first = seen.setdefault((job.queue_id, job.singleton_key), job.pk)
            if first != job.pk:
                taken[job.pk] = first
    return taken


def _edits(using: str, jobs: list[Job], data: Any) -> dict[str, Any]:
    """The data of these locked jobs before and after, for the record, which is kept longer than the jobs.

    Without sensitive values, and of a few jobs, because it may be large.
    """
    few = [job.pk for job in jobs[:EDITS_KEPT]]
    before = Job.objects.using(using).filter(pk__in=few).values_list("pk", "data")
    return {str(id): {"before": redacted(was), "after": redacted(data)} for id, was in before}


def _ids(jobs: Jobs) -> tuple[list[UUID], bool]:
    """The ids of the jobs, and whether a single job was given."""
    if isinstance(jobs, Job):
        return [jobs.pk], True
    if isinstance(jobs, UUID | str) or not isinstance(jobs, Iterable):
        return [as_uuid(jobs)], True
    if isinstance(jobs, QuerySet):
        if not issubclass(jobs.model, Job):
            raise InvalidOption("jobs", f"expected a queryset of jobs, got one of {jobs.model.__name__}")
        unordered = jobs if jobs.query.is_sliced else jobs.order_by()
        return list(unordered.values_list("pk", flat=True)), False
    return list(dict.fromkeys(job.pk if isinstance(job, Job) else as_uuid(job) for job in jobs)), False


def _selection(verb: str, ids: Jobs, tags: Iterable[str]) -> tuple[list[UUID], list[str]]:
    job_ids, _ = _ids(ids)
    tagged = check_tags(tags) if tags else []
    if not job_ids and not tagged and not isinstance(ids, QuerySet):
        raise InvalidOption("ids", f"{verb}() needs ids or tags", hint="To empty a queue there is purge().")
    return job_ids, tagged


def _ids_of(ids: list[UUID], tags: list[str], queue: str | None, using: str) -> list[UUID]:
    if not tags:
        return ids
    tagged = Job.objects.using(using).tagged(tags)
    if queue is not None:
        tagged = tagged.in_queue(queue)
    return list(dict.fromkeys([*ids, *tagged.values_list("pk", flat=True)]))


def _edited(edits: Mapping[str, Any], moved: list[UUID]) -> dict[str, Any]:
    data = {id: edit for id, edit in edits.items() if UUID(id) in moved}
    return {"data": data} if data else {}


acancel = sync_to_async(cancel)


def reschedule(job: Target, start_after: datetime, *, queue: str | None = None, using: str | None = None) -> None:
    """Change the time before which a waiting job does not start.

    Whether later jobs of its key may run before it depends on the queue's option ``delayed_head``. Raises
    ``JobNotFound``, ``InvalidOption``, and ``InvalidTransition`` if the job does not wait.
    """
    moment = check_moment(start_after)
    using, queue = database_of(job, using), None if queue is None else named(queue)
    id = id_of(job)

    def work() -> None:
        locked, jobs = lock(using, [id], queue=queue)
        if not jobs:
            raise JobNotFound(id)
        (row,) = jobs
        allowed = leads_to(JobState.ACTIVE)
        if row.state not in allowed:
            raise InvalidTransition(job_id=id, state=row.state, wanted="rescheduled", allowed=allowed)
        execute(using, sql.transitions.RESCHEDULE, {"moment": moment, "id": id, "queue": row.queue_id})
        locked.release(lanes_of(jobs))
        wake(using, [row.queue_id])

    in_transaction(using, work)
