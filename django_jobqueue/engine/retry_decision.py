"""What a failed attempt does to its job: the job gets another attempt, fails for good, or is skipped by its queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from ..backoff import retry_delay_seconds
from ..conf import get_settings
from ..models import Job, Queue
from ..policies import ORDERED, OnExhausted, QueuePolicy
from ..states import FailureReason, JobState
from . import sql
from .databases import rows
from .transitions import Answers, Change


@dataclass(frozen=True, slots=True)
class Failing:
    """Why an attempt ended, and the states that this leads to."""

    error: str
    reason: FailureReason
    error_summary: str | None = None  # if the text of the error does not tell it
    for_good: bool = False
    retry_after: float | None = None
    waits_as: JobState = JobState.RETRY
    dies_as: JobState = JobState.FAILED
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """Ends failed attempts: each job waits for its next attempt, fails for good, or is skipped by its queue."""

    failing: Mapping[UUID, Failing]

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        beside = retrying_beside(using, jobs)
        queues = Queue.objects.using(using).filter(name__in={job.queue_id for job in jobs})
        skipping = set(queues.filter(on_exhausted=OnExhausted.SKIP).values_list("name", flat=True))
        return {
            job.pk: change_after(
                job, self.failing[job.pk], retry_taken=job.pk in beside, skips=job.queue_id in skipping
            )
            for job in jobs
        }


def change_after(job: Job, failing: Failing, *, retry_taken: bool = False, skips: bool = False) -> Change:
    """Decide whether a job gets another attempt; no other code decides this."""
    crashes = job.crashes + 1 if failing.crashed else 0
    reason = failing.reason.value
    ended = Change(
        failing.dies_as,
        crashes=crashes,
        error=failing.error,
        error_summary=failing.error_summary,
        reason=reason,
        outcome=reason,
        died=True,
    )
    if crashes >= get_settings().CRASH_LIMIT:
        ended = replace(ended, state=JobState.FAILED, reason=FailureReason.CRASH_LOOP.value)
    elif failing.for_good or (_is_exhausted(job) and not _is_paid(job)):
        pass
    elif retry_taken:
        ended = replace(ended, state=JobState.FAILED, reason=FailureReason.RETRY_TAKEN.value)
    else:
        charge, delay = 0 if _is_paid(job) else 1, _delay(job, failing)
        return replace(ended, state=failing.waits_as, died=False, charge=charge, delay=delay)
    if skips and job.policy == ORDERED:
        return replace(ended, state=JobState.STOPPED, reason=FailureReason.EXHAUSTED.value)
    return ended


def _is_exhausted(job: Job) -> bool:
    return job.retry_limit is not None and job.retry_count >= job.retry_limit


def _is_paid(job: Job) -> bool:
    """Whether this attempt has already used up a retry, when its worker was considered lost."""
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


@dataclass(frozen=True, slots=True)
class ReturnToQueue:
    """Returns jobs to the queue without using up a retry.

    A job that is cancelling is stopped. A job on a stately queue fails if another job of its key waits for a retry.
    """

    message: str
    delay: float = 0

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        beside = retrying_beside(using, jobs)
        return {job.pk: self._change(job, job.pk in beside) for job in jobs}

    def _change(self, job: Job, retry_taken: bool) -> Change:
        if job.state == JobState.CANCELLING:
            return Change(
                JobState.STOPPED, error=self.message, reason=FailureReason.CANCELLED, outcome="cancelled"
            )  # fmt: skip
        if retry_taken:
            reason = FailureReason.RETRY_TAKEN
            return Change(JobState.FAILED, error=self.message, reason=reason, outcome="returned", died=True)
        reason = FailureReason.RETURNED
        return Change(JobState.RETRY, delay=self.delay, error=self.message, reason=reason, outcome="returned")


def retrying_beside(using: str, jobs: Iterable[Job]) -> dict[UUID, UUID]:
    """Jobs on stately queues that cannot wait for a retry, each with the job of its key that already does."""
    stately = [job.pk for job in jobs if job.policy == QueuePolicy.STATELY]
    return dict(rows(using, sql.transitions.RETRYING_BESIDE, {"ids": stately})) if stately else {}
