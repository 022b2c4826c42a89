"""Ending attempts: complete, fail, stop. A worker's verbs are fenced by its claim; a bare id is not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from traceback import TracebackException
from typing import Any
from uuid import UUID

from django.db import connections

from ..claims import Claim
from ..conf import get_settings
from ..encoding import clean_output, clean_text
from ..engine import capacity, sql
from ..engine.claims import Target, check_claim, claim_of, database_of, id_of, leaf_of_job
from ..engine.lanes import PAUSES, Lane, Locked
from ..engine.notifications import wake
from ..engine.queues import named
from ..engine.retry_decision import Failing, Failure, failing_each, failures, returning
from ..engine.transactions import execute, in_transaction, joins
from ..engine.transitions import Change, Decide, Decision, Moved, move_each
from ..exceptions import ClaimLost, InvalidOption, InvalidTransition, JobNotFound
from ..models import Job
from ..options import YEAR, check_reason, check_seconds
from ..policies import LANED
from ..states import ELIGIBLE, FOLLOWS, STOPPABLE, FailureReason, JobState, leads_to


def complete(job: Target, output: Any = None, *, queue: str | None = None, using: str | None = None) -> None:
    """Finish the attempt this worker holds, and store what it returned.

    A fetched job, or its claim, is fenced: it changes nothing once it was lost. A bare id finishes whatever attempt
    there is. Raises ``ClaimLost`` if the claim was lost, ``JobNotFound``, and ``InvalidTransition`` from a state that
    cannot complete. An output that JSON cannot hold is cleaned, never refused.
    """
    using = database_of(job, using)
    text, _ = clean_output(output, max_bytes=get_settings().MAX_OUTPUT_BYTES)
    known = job if isinstance(job, Job) else _find(id_of(job), queue, using)
    work = partial(complete_one, known, claim_of(job), text, using)
    if joins(connections[using]) and known.policy not in LANED:
        work()  # in the caller's transaction, with nothing to set and to set back
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
    """End the attempt without success: the job waits for its next attempt, or has failed for good.

    ``retry_after`` (seconds) takes the place of the job's own delay; ``for_good`` uses up its retries. Raises
    ``InvalidOption`` for an empty error, ``ClaimLost``, ``JobNotFound`` and ``InvalidTransition``.
    """
    text = told(error)
    if not text.strip():
        raise InvalidOption("error", "expected a text that says what went wrong, got an empty one")
    if retry_after is not None:
        retry_after = check_seconds(retry_after, option="retry_after", minimum=0, maximum=100 * YEAR)
    dies_as = JobState.EXPIRED if reason == FailureReason.EXPIRED else JobState.FAILED
    failing = Failing(text, check_reason(reason), for_good=for_good, retry_after=retry_after, dies_as=dies_as)
    using = database_of(job, using)
    moved = _move_one(job, partial(_failing, using, {id_of(job): failing}), queue, using)
    return failures(moved)[0]


def told(error: object) -> str:
    """An exception with its class, and with the way it came where that is known; its message is the last line."""
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
    """End a started job for good without success; ``count_retry``, only while cancelling, counts a retry as well.

    Raises ``ClaimLost``, ``JobNotFound`` and ``InvalidTransition``.
    """
    allowed = {JobState.CANCELLING} if count_retry else STOPPABLE

    def change(found: Job) -> Change:
        # At the limit the count would exceed it; so the limit goes with it.
        full = count_retry and found.retry_limit is not None and found.retry_count >= found.retry_limit
        return Change(
            JobState.STOPPED,
            charge=int(count_retry),
            more_retries=int(full),
            error=message or None,
            reason=FailureReason.CANCELLED,
            outcome="stopped",
            crashes=0,
        )

    _move_one(job, _allowing(allowed, JobState.STOPPED, change), queue, database_of(job, using))


def mark_unknown_stopped(job: Target, message: str = "", *, queue: str | None = None, using: str | None = None) -> None:
    """End a job of which nobody knows whether it ran; a late success may still complete it.

    Raises ``JobNotFound`` and ``InvalidTransition``.
    """
    allowed = leads_to(JobState.UNKNOWN_STOPPED)
    change = Change(JobState.UNKNOWN_STOPPED, error=message or None, reason=FailureReason.CANCELLED, outcome="unknown")
    decide = _allowing(allowed, JobState.UNKNOWN_STOPPED, lambda _: change)
    _move_one(job, decide, queue, database_of(job, using))


def acknowledge_cancellation(
    job: Target, *, was_executing: bool, queue: str | None = None, using: str | None = None
) -> None:
    """A worker's answer to a cancellation: it stopped the handler, or it did not know the job.

    Raises ``JobNotFound``, ``ClaimLost`` and, unless the job is cancelling, ``InvalidTransition``.
    """
    state = JobState.STOPPED if was_executing else JobState.UNKNOWN_STOPPED
    change = Change(state, reason=FailureReason.CANCELLED, outcome="cancelled", crashes=0)
    decide = _allowing({JobState.CANCELLING}, state, lambda _: change)
    _move_one(job, decide, queue, database_of(job, using))


def give_back(
    job: Target,
    message: str,
    *,
    delay: float | None = None,
    queue: str | None = None,
    using: str | None = None,
) -> None:
    """Return a claimed job uncharged, to be fetched again now or after ``delay`` seconds; its key stays its own.

    Raises ``ClaimLost``, ``JobNotFound`` and ``InvalidTransition``.
    """
    if delay is not None:
        delay = check_seconds(delay, option="delay", minimum=0, maximum=100 * YEAR)
    using = database_of(job, using)
    _move_one(
        job,
        _allowing({JobState.ACTIVE}, JobState.RETRY, None, partial(returning, using, message, delay)),
        queue,
        using,
    )


# --------------------------------------------------------------------------------------------------- one at a time


def complete_one(job: Job, claim: Claim | None, output: str | None, using: str) -> bool:
    """Complete a job that is known; without a claim whatever attempt of it was just read."""
    if job._state.adding:
        raise JobNotFound(job.pk)
    lane = {Lane(job.queue_id, job.policy, job.singleton_key)} if job.policy in LANED else set()
    locked = Locked(using, lane, pauses=PAUSES)
    statement = sql.parts.at(leaf_of_job(job, using), sql.finish.COMPLETE_ONE)
    meant = claim or Claim(job.pk, job.attempt, job.claim_number)
    if not execute(using, statement, [output, job.pk, meant.attempt, meant.number, meant.number]):
        raise _refusal(job, claim, JobState.COMPLETED, leads_to(JobState.COMPLETED), using)
    locked.release(lane)
    capacity.ended(using, [job.pk])
    if job.came_by_group:
        wake(using, [job.queue_id])  # the next of its group may go
    return True


def _refusal(job: Job, claim: Claim | None, wanted: JobState, allowed: Iterable[str], using: str) -> Exception:
    """Why a verb moved nothing."""
    found = Job.objects.using(using).in_queue(job.queue_id).filter(pk=job.pk)
    now = found.values_list("state", "attempt", "claim_number").first()
    if now is None:
        return JobNotFound(job.pk)
    state, attempt, number = now
    if claim is not None and (not claim.fits(attempt, number) or state in ELIGIBLE):
        return ClaimLost(job_id=job.pk, attempt=claim.attempt, now=attempt)
    return InvalidTransition(job_id=job.pk, state=state, wanted=wanted.value, allowed=map(str, allowed))


def _find(id: UUID, queue: str | None, using: str) -> Job:
    found = Job.objects.using(using).filter(pk=id)
    if queue is not None:
        found = found.in_queue(named(queue))
    one = found.only("id", "queue_id", "policy", "singleton_key", "attempt", "claim_number").first()
    if one is None:
        raise JobNotFound(id)
    return one


def _move_one(job: Target, decide: Decide, queue: str | None, using: str) -> Moved:
    """Move the one job a worker speaks of; a fetched one only if its claim still stands."""
    id = id_of(job)

    def fenced(jobs: list[Job]) -> Decision:
        if not jobs:
            raise JobNotFound(id)
        if not check_claim(job, jobs[0]):
            return decide(jobs)
        return partial(_still_held, decide(jobs))

    place = job.queue_id if isinstance(job, Job) else queue
    return move_each(using, [id], fenced, queue=place, pauses=PAUSES)


def _still_held(decision: Decision, job: Job) -> Change | None:
    """A job that waits again is no longer held by the attempt that ended, whatever ended it."""
    try:
        return decision(job)
    except InvalidTransition:
        if job.state in ELIGIBLE:
            raise ClaimLost(job_id=job.pk, attempt=job.attempt, now=job.attempt) from None
        raise


def _allowing(allowed: Collection[JobState], wanted: JobState, change: Any, decide: Decide | None = None) -> Decide:
    def looked(jobs: list[Job]) -> Decision:
        judged: Decision = change if decide is None else decide(jobs)

        def decision(job: Job) -> Change | None:
            if job.state not in allowed:
                raise InvalidTransition(job_id=job.pk, state=job.state, wanted=wanted.value, allowed=allowed)
            return judged(job)

        return decision

    return looked


def completion_of(some: Sequence[tuple[Job, str | None]], *, here: bool = False) -> list[Any]:
    """Places, claims and outputs, as arrays: psycopg would take longer to write them than the server to read.

    For the statements that complete ``here``, where the claims put the rows, without attempts.
    """
    places = ",".join([f'"{job.ctid}"' for job, _ in some])
    ids = ",".join([job.id.hex for job, _ in some])
    held = [job.held_number for job, _ in some]
    texts = {number: str(number or "NULL") for number in set(held)}  # most come from one fetch, and so have one number
    numbers = ",".join([texts[number] for number in held])
    given = [output for _, output in some]
    outputs = given if any(given) else []
    if here:
        return [f"{{{places}}}", f"{{{ids}}}", f"{{{numbers}}}", outputs]
    attempts = ",".join([str(job.attempt) for job, _ in some])
    return [f"{{{places}}}", f"{{{ids}}}", f"{{{attempts}}}", f"{{{numbers}}}", outputs]


def _failing(using: str, failing: dict[UUID, Failing], jobs: list[Job]) -> Decision:
    judged = failing_each(using, jobs, failing)

    def decision(job: Job) -> Change | None:
        if not FOLLOWS[JobState(job.state)] & {JobState.FAILED}:
            allowed = leads_to(JobState.FAILED)
            raise InvalidTransition(job_id=job.pk, state=job.state, wanted=JobState.RETRY.value, allowed=allowed)
        return judged(job)

    return decision
