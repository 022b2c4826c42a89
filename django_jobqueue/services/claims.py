"""Changing the lease or the heartbeat of one job, without ending its attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..engine.claims import JobReference, Target, check_job, claim_of_job, database_of, reference
from ..engine.retry_decision import ReturnToQueue
from ..engine.transitions import Answers, move_one
from ..exceptions import ClaimLost, InvalidOption, InvalidTransition, JobNotFound
from ..expressions import StatementTimestamp
from ..models import Job
from ..options import YEAR, check_seconds
from ..policies import ORDERED
from ..states import ELIGIBLE, RUNNING, JobState


def set_visibility(
    job: Target, seconds: float | timedelta, *, queue: str | None = None, using: str | None = None
) -> None:
    """Set the lease of an active job to end ``seconds`` from now.

    With zero seconds the job returns to the queue at once, without using up a retry. On an ordered queue only the
    worker that holds the job may call this. On other queues an id is enough. Choose a lease that is longer than the
    handler takes: a job whose lease has ended is fetched again even while its handler runs. Raises ``ClaimLost``,
    ``JobNotFound``, ``InvalidTransition`` and ``InvalidOption``.
    """
    lease = check_seconds(seconds, option="seconds", minimum=0, maximum=YEAR)
    target = reference(job, queue, using)
    move_one(target, Lease(target, lease))


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease of this many seconds for one job; with zero seconds the job returns to its queue."""

    target: JobReference
    seconds: float

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        _check_holder(self.target, jobs)
        if not self.seconds:
            return ReturnToQueue("made visible again").answers(using, jobs)
        leased = Job.objects.using(using).filter(pk=jobs[0].pk, queue=jobs[0].queue_id)
        leased.update(lease_until=StatementTimestamp() + timedelta(seconds=self.seconds))
        return {}


def _check_holder(target: JobReference, locked: list[Job]) -> None:
    if not locked:
        raise JobNotFound(target.id)
    (row,) = locked
    if target.claim is not None:
        target.claim.check(row.attempt, row.claim_number)
    if target.claim is not None and row.state in ELIGIBLE:
        raise ClaimLost(job_id=row.pk, attempt=row.attempt, now=row.attempt)
    if row.state != JobState.ACTIVE:
        raise InvalidTransition(job_id=row.pk, state=row.state, wanted="leased", allowed=[JobState.ACTIVE])
    if row.policy == ORDERED and target.claim is None:
        raise InvalidOption(
            "job",
            "on an ordered queue only its holder may do this",
            hint="Pass the job that fetch() returned.",
        )


def touch(job: Job, *, using: str | None = None) -> JobState:
    """Send the heartbeat of one job, and return the job's state: ``cancelling`` if its handler should stop.

    Raises ``ClaimLost`` if the claim is no longer valid.
    """
    check_job(job)
    using = database_of(job, using)
    if job._state.adding:
        raise ClaimLost(job_id=job.pk, attempt=0)
    claim = claim_of_job(job)
    # Not .running(): with it the planner may read all running jobs instead of using the primary key.
    held = Job.objects.using(using).in_queue(job.queue_id).of_claim(claim)
    held = held.exclude(state__in=sorted(set(JobState) - RUNNING))
    if not held.update(heartbeat_at=StatementTimestamp()):
        now = Job.objects.using(using).filter(pk=job.pk).values_list("attempt", flat=True).first()
        raise ClaimLost(job_id=job.pk, attempt=claim.attempt, now=now)
    return JobState(held.values_list("state", flat=True).get())
