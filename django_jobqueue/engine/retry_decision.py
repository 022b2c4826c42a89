"""What a failure does to a job: another attempt, the end, or the way out that its queue has chosen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ..backoff import retry_delay_seconds
from ..conf import get_settings
from ..models import Job, Queue
from ..policies import ORDERED, OnExhausted
from ..states import DEAD, FailureReason, JobState
from .transitions import Change, Decision, Moved, retrying_beside


@dataclass(frozen=True, slots=True)
class Failure:
    """What became of a job whose attempt failed."""

    id: UUID
    state: JobState
    retry_count: int
    will_retry: bool
    next_retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Failing:
    """Why an attempt ended, and what that means for the job."""

    error: str
    reason: FailureReason
    for_good: bool = False
    retry_after: float | None = None
    waits_as: JobState = JobState.RETRY
    dies_as: JobState = JobState.FAILED
    crashed: bool = False


def failing_each(using: str, jobs: list[Job], failing: dict[UUID, Failing]) -> Decision:
    """How to judge jobs that failed: each waits for its next attempt, or dies, or is skipped by its queue."""
    beside = retrying_beside(using, jobs)
    names = {job.queue_id for job in jobs}
    skipping = set(
        Queue.objects.using(using).filter(name__in=names, on_exhausted=OnExhausted.SKIP).values_list("name", flat=True)
    )

    def decision(job: Job) -> Change | None:
        return change_after(job, failing[job.pk], retry_taken=job.pk in beside, skips=job.queue_id in skipping)

    return decision


def change_after(job: Job, failing: Failing, *, retry_taken: bool = False, skips: bool = False) -> Change:
    """The one place that decides whether a job gets another attempt."""
    crashes = job.crashes + 1 if failing.crashed else 0
    change = Change(
        failing.dies_as,
        crashes=crashes,
        error=failing.error,
        reason=failing.reason.value,
        outcome=failing.reason.value,
        died=True,
    )
    if failing.crashed and crashes >= get_settings().CRASH_LIMIT:
        change.state, change.reason = JobState.FAILED, FailureReason.CRASH_LOOP.value
    elif failing.for_good or (_is_exhausted(job) and not _is_paid(job)):
        pass
    elif retry_taken:
        change.state, change.reason = JobState.FAILED, FailureReason.RETRY_TAKEN.value
    else:
        change.state, change.died, change.charge = failing.waits_as, False, 0 if _is_paid(job) else 1
        change.delay = _delay(job, failing)
        return change
    if skips and job.policy == ORDERED:
        change.state, change.reason = JobState.STOPPED, FailureReason.EXHAUSTED.value
    return change


def _is_exhausted(job: Job) -> bool:
    return job.retry_limit is not None and job.retry_count >= job.retry_limit


def _is_paid(job: Job) -> bool:
    """Whether this attempt has cost its retry already, when its worker was thought lost."""
    charged, began = job.last_retry_at, job.assigned_at
    return job.state == JobState.UNKNOWN_RETRY and charged is not None and began is not None and charged >= began


def _delay(job: Job, failing: Failing) -> float:
    if failing.retry_after is not None:
        return max(0.0, failing.retry_after)
    return retry_delay_seconds(
        job.retry_count + (0 if _is_paid(job) else 1),
        delay=job.retry_delay,
        backoff=job.retry_backoff,
        maximum=job.retry_delay_max,
    )


def returning(using: str, message: str, delay: float | None, jobs: list[Job]) -> Decision:
    """Back to waiting, uncharged; a stately job whose place is taken meanwhile cannot, and fails."""
    beside = retrying_beside(using, jobs)

    def decision(job: Job) -> Change:
        if job.pk in beside:
            return Change(
                JobState.FAILED,
                error=message,
                reason=FailureReason.RETRY_TAKEN,
                outcome="returned",
                died=True,
            )
        return Change(
            JobState.RETRY, delay=delay or 0, error=message, reason=FailureReason.RETURNED, outcome="returned"
        )

    return decision


def failures(moved: Moved) -> list[Failure]:
    """What to tell of jobs that failed."""
    return [
        Failure(
            id=job.pk,
            state=moved.changes[job.pk].state,
            retry_count=job.retry_count + moved.changes[job.pk].charge,
            will_retry=moved.changes[job.pk].state not in DEAD | {JobState.STOPPED},
            next_retry_at=None if moved.changes[job.pk].died else moved.due[job.pk],
        )
        for job in moved.jobs
        if job.pk in moved.changes
    ]
