"""The slots that the policy of a queue gives to the jobs of a key: a failed job may find its slot taken."""

from __future__ import annotations

from uuid import UUID

from ..models import Job
from ..policies import QueuePolicy
from ..states import OCCUPIED
from .retry_decision import retrying_beside


def slots_taken(using: str, jobs: list[Job]) -> dict[UUID, UUID]:
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
