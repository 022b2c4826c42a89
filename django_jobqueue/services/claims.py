"""What is changed about one job without ending it: its lease, its heartbeat, its time."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from ..engine.claims import Target, check_claim, check_job, claim_of_job, database_of, id_of
from ..engine.lanes import PAUSES
from ..engine.retry_decision import returning
from ..engine.transitions import Decision, move_each
from ..exceptions import ClaimLost, InvalidOption, InvalidTransition, JobNotFound
from ..expressions import StatementTimestamp
from ..models import Job
from ..options import YEAR, check_seconds
from ..policies import ORDERED
from ..states import ELIGIBLE, RUNNING, JobState


def set_visibility(
    job: Target, seconds: float | timedelta, *, queue: str | None = None, using: str | None = None
) -> None:
    """Lease an active job for ``seconds`` from now; zero gives it back at once, uncharged.

    On an ordered queue only the worker that holds the job may do it. On other queues an id is enough: choose a lease
    longer than the handler takes, because a job whose lease ends is fetched again even while its handler runs. Raises
    ``ClaimLost``, ``JobNotFound``, ``InvalidTransition`` and ``InvalidOption``.
    """
    lease = check_seconds(seconds, option="seconds", minimum=0, maximum=YEAR)
    using = database_of(job, using)
    place = job.queue_id if isinstance(job, Job) else queue
    id = id_of(job)

    def decide(found: list[Job]) -> Decision:
        _check_holder(job, id, found)
        if not lease:
            return returning(using, "made visible again", None, found)
        Job.objects.using(using).filter(pk=id, queue=found[0].queue_id).update(
            lease_until=StatementTimestamp() + timedelta(seconds=lease)
        )
        return lambda _: None

    move_each(using, [id], decide, queue=place, pauses=PAUSES)


def _check_holder(job: Target, id: UUID, found: list[Job]) -> None:
    if not found:
        raise JobNotFound(id)
    one = found[0]
    fenced = check_claim(job, one)
    if fenced and one.state in ELIGIBLE:
        raise ClaimLost(job_id=id, attempt=one.attempt, now=one.attempt)
    if one.state != JobState.ACTIVE:
        raise InvalidTransition(job_id=id, state=one.state, wanted="leased", allowed=[JobState.ACTIVE])
    if one.policy == ORDERED and not fenced:
        raise InvalidOption(
            "job",
            "on an ordered queue only its holder may do this",
            hint="Pass the job that fetch() returned.",
        )


def touch(job: Job, *, using: str | None = None) -> JobState:
    """A worker's sign of life for one job; returns its state, which is ``cancelling`` when it should stop.

    Raises ``ClaimLost``.
    """
    check_job(job)
    using = database_of(job, using)
    if job._state.adding:
        raise ClaimLost(job_id=job.pk, attempt=0)
    claim = claim_of_job(job)
    # Not .running(): that would let the planner go through all that runs instead of by the primary key.
    held = Job.objects.using(using).in_queue(job.queue_id).of_claim(claim)
    held = held.exclude(state__in=sorted(set(JobState) - RUNNING))
    if not held.update(heartbeat_at=StatementTimestamp()):
        now = Job.objects.using(using).filter(pk=job.pk).values_list("attempt", flat=True).first()
        raise ClaimLost(job_id=job.pk, attempt=claim.attempt, now=now)
    return JobState(held.values_list("state", flat=True).get())
