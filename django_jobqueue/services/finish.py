"""Ending attempts: complete, fail, stop. With a fetched job or a claim the claim is checked; with an id it is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from traceback import TracebackException
from typing import Any
from uuid import UUID

from django.db import connections

from ..claims import Claim
from ..conf import get_settings
from ..engine import announcements, sql
from ..engine.claims import JobReference, Target, claim_of, database_of, id_of, leaf_of_job, reference
from ..engine.databases import execute, named
from ..engine.lanes import PAUSES, Lane, Locked
from ..engine.retry_decision import Fail, Failing, ReturnToQueue
from ..engine.transactions import at, in_transaction, joins
from ..engine.transitions import Answers, Become, Change, Decision, move_one
from ..error_summary import summary_of
from ..exceptions import ClaimLost, InvalidOption, InvalidTransition, JobNotFound
from ..models import Job
from ..options import YEAR, check_reason, check_seconds
from ..outputs import clean_output
from ..policies import LANED
from ..states import ELIGIBLE, FAILABLE, RETRYING, STOPPABLE, FailureReason, JobState, leads_to
from ..text import clean_text


@dataclass(frozen=True, slots=True)
class Failure:
    """The state of a job after a failed attempt, and when its next attempt is due."""

    id: UUID
    state: JobState
    retry_count: int
    will_retry: bool
    next_retry_at: datetime | None
    seq: int = field(default=0, compare=False)
    retry_limit: int | None = field(default=None, compare=False)
    retry_in_seconds: float | None = field(default=None, compare=False)


def complete(job: Target, output: Any = None, *, queue: str | None = None, using: str | None = None) -> None:
    """Complete a job, and store the output of its handler.

    For a fetched job or a claim, nothing changes if the claim is no longer valid. For an id, the current attempt is
    completed. An output that JSON cannot represent is converted, never refused. Raises ``ClaimLost``, ``JobNotFound``,
    and ``InvalidTransition`` if the job is in a state that cannot complete.
    """
    using = database_of(job, using)
    text, _ = clean_output(output, max_bytes=get_settings().MAX_OUTPUT_BYTES)
    known = job if isinstance(job, Job) else _find(id_of(job), queue, using)
    work = partial(complete_one, known, claim_of(job), text, using)
    if known.policy not in LANED and joins(connections[using]):
        work()  # in the caller's transaction, where no planner settings need to be changed and restored
    else:
        in_transaction(using, work)


def fail(
    job: Target,
    error: object,
    *,
    retry_after: float | None = None,
    for_good: bool = False,
    reason: FailureReason = FailureReason.ERROR,
    queue: str | None = None,
    using: str | None = None,
) -> Failure:
    """End the attempt without success: the job waits for its next attempt, or fails for good.

    ``retry_after`` is the number of seconds until the next attempt, instead of the job's own delay. With ``for_good``
    the job gets no further attempt. Raises ``InvalidOption`` for an empty error, ``ClaimLost``, ``JobNotFound`` and
    ``InvalidTransition``.
    """
    text = told(error)
    if not text.strip():
        raise InvalidOption("error", "expected a text that says what went wrong, got an empty one")
    if retry_after is not None:
        retry_after = check_seconds(retry_after, option="retry_after", minimum=0, maximum=100 * YEAR)
    dies_as = JobState.EXPIRED if reason == FailureReason.EXPIRED else JobState.FAILED
    failing = Failing(
        text,
        check_reason(reason),
        error_summary=summary_of(error),
        for_good=for_good,
        retry_after=retry_after,
        dies_as=dies_as,
    )
    target = reference(job, queue, using)
    decision = FinishOne(target, FAILABLE, JobState.RETRY, Fail({target.id: failing}))
    moved = move_one(target, decision)
    [before], change = moved.jobs, moved.changes[target.id]
    return Failure(
        id=target.id,
        state=change.state,
        retry_count=before.retry_count + change.charge,
        will_retry=change.state in RETRYING,
        next_retry_at=None if change.died else moved.due[target.id],
        seq=before.seq,
        retry_limit=before.retry_limit,
        retry_in_seconds=None if change.died else change.delay,
    )


def told(error: object) -> str:
    """The text of an error; of an exception with its class and, if it was raised, its traceback."""
    most = get_settings().MAX_ERROR_CHARS
    if not isinstance(error, BaseException):
        return clean_text(error, max_chars=most)
    if error.__traceback__ is not None:
        return clean_text("".join(TracebackException.from_exception(error).format()).rstrip(), max_chars=most)
    message = clean_text(error, max_chars=most)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def stop(
    job: Target,
    message: str = "",
    *,
    count_retry: bool = False,
    queue: str | None = None,
    using: str | None = None,
) -> None:
    """End a job that was started, without success and without further attempts.

    With ``count_retry``, which is allowed only while the job is cancelling, the attempt also counts as a retry. Raises
    ``ClaimLost``, ``JobNotFound`` and ``InvalidTransition``.
    """
    allowed = frozenset({JobState.CANCELLING}) if count_retry else STOPPABLE
    target = reference(job, queue, using)
    move_one(target, FinishOne(target, allowed, JobState.STOPPED, Stop(_storable(message), count_retry)))


def mark_unknown_stopped(job: Target, message: str = "", *, queue: str | None = None, using: str | None = None) -> None:
    """End a job for which it is unknown whether its handler ran; a late success can still complete it.

    Raises ``JobNotFound`` and ``InvalidTransition``.
    """
    state = JobState.UNKNOWN_STOPPED
    change = Change(state, error=_storable(message), reason=FailureReason.CANCELLED, outcome="unknown")
    target = reference(job, queue, using)
    move_one(target, FinishOne(target, leads_to(state), state, Become(change)))


def acknowledge_cancellation(
    job: Target, *, was_executing: bool, queue: str | None = None, using: str | None = None
) -> None:
    """Answer a cancellation as the worker: it stopped the handler (``was_executing``), or it was not running the job.

    Raises ``JobNotFound``, ``ClaimLost`` and, unless the job is cancelling, ``InvalidTransition``.
    """
    state = JobState.STOPPED if was_executing else JobState.UNKNOWN_STOPPED
    change = Change(state, reason=FailureReason.CANCELLED, outcome="cancelled", crashes=0)
    target = reference(job, queue, using)
    move_one(target, FinishOne(target, frozenset({JobState.CANCELLING}), state, Become(change)))


def give_back(
    job: Target,
    message: str,
    *,
    delay: float | None = None,
    queue: str | None = None,
    using: str | None = None,
) -> None:
    """Return a claimed job to the queue without using up a retry, to be fetched again now or after ``delay`` seconds.

    On an ordered queue the job keeps its place: no other job of its key runs before it. Raises ``ClaimLost``,
    ``JobNotFound`` and ``InvalidTransition``.
    """
    if delay is not None:
        delay = check_seconds(delay, option="delay", minimum=0, maximum=100 * YEAR)
    returned = ReturnToQueue(_storable(message) or "", delay or 0)
    target = reference(job, queue, using)
    move_one(target, FinishOne(target, frozenset({JobState.ACTIVE}), JobState.RETRY, returned))


# --------------------------------------------------------------------------------------------------- one at a time


def complete_one(job: Job, claim: Claim | None, output: str | None, using: str) -> None:
    """Complete a job that was read before; without a claim, in the attempt that was read."""
    if job._state.adding:
        raise JobNotFound(job.pk)
    lane = {Lane(job.queue_id, job.policy, job.singleton_key)} if job.policy in LANED else set()
    locked = Locked(using, lane, pauses=PAUSES)
    statement = at(leaf_of_job(job, using), sql.finish.COMPLETE_ONE)
    meant = claim or Claim(job.pk, job.attempt, job.claim_number)
    params = {"output": output, "id": job.pk, "attempt": meant.attempt, "number": meant.number}
    if not execute(using, statement, params):
        raise _refusal(job, claim, JobState.COMPLETED, leads_to(JobState.COMPLETED), using)
    locked.release(lane)
    announcements.ended(using, [job.pk])
    if job.came_by_group:
        announcements.wake(using, [job.queue_id])  # the next job of its group may be fetchable now


def _refusal(job: Job, claim: Claim | None, wanted: JobState, allowed: Iterable[str], using: str) -> Exception:
    """The exception that says why a verb changed no row."""
    same_job = Job.objects.using(using).in_queue(job.queue_id).filter(pk=job.pk)
    now = same_job.values_list("state", "attempt", "claim_number").first()
    if now is None:
        return JobNotFound(job.pk)
    state, attempt, number = now
    if claim is not None and (not claim.fits(attempt, number) or state in ELIGIBLE):
        return ClaimLost(job_id=job.pk, attempt=claim.attempt, now=attempt)
    return InvalidTransition(job_id=job.pk, state=state, wanted=wanted.value, allowed=map(str, allowed))


def _find(id: UUID, queue: str | None, using: str) -> Job:
    jobs = Job.objects.using(using).filter(pk=id)
    if queue is not None:
        jobs = jobs.in_queue(named(queue))
    job = jobs.only("id", "queue_id", "policy", "singleton_key", "attempt", "claim_number").first()
    if job is None:
        raise JobNotFound(id)
    return job


@dataclass(frozen=True, slots=True)
class FinishOne:
    """A decision that ends an attempt: allowed from these states, and with a claim only while the claim is valid."""

    target: JobReference
    allowed: frozenset[JobState]
    wanted: JobState
    decision: Decision

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        if not jobs:
            raise JobNotFound(self.target.id)
        (row,) = jobs
        if self.target.claim is not None:
            self.target.claim.check(row.attempt, row.claim_number)
        if row.state in self.allowed:
            return self.decision.answers(using, jobs)
        if self.target.claim is not None and row.state in ELIGIBLE:  # the attempt has ended, whatever ended it
            raise ClaimLost(job_id=row.pk, attempt=row.attempt, now=row.attempt)
        raise InvalidTransition(job_id=row.pk, state=row.state, wanted=self.wanted.value, allowed=self.allowed)


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends jobs without success; if a counted retry would exceed the retry limit, the limit is raised too."""

    message: str | None
    count_retry: bool

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        return {job.pk: self._change(job) for job in jobs}

    def _change(self, job: Job) -> Change:
        is_full = self.count_retry and job.retry_limit is not None and job.retry_count >= job.retry_limit
        return Change(
            JobState.STOPPED,
            charge=int(self.count_retry),
            more_retries=int(is_full),
            error=self.message,
            reason=FailureReason.CANCELLED,
            outcome="stopped",
            crashes=0,
        )


def _storable(message: str) -> str | None:
    return clean_text(message, max_chars=get_settings().MAX_ERROR_CHARS) if message else None
