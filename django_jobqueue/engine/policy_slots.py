"""The slots that the policy of a queue gives to the jobs of a key: an operator's verb may find them taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar
from uuid import UUID

from django.db import IntegrityError, OperationalError, connections, transaction
from psycopg.errors import UniqueViolation

from ..database_errors import explain
from ..models import Job
from ..policies import QueuePolicy
from ..states import OCCUPIED
from .retry_decision import retrying_beside

T = TypeVar("T")


def despite_collisions(work: Callable[[], T], using: str) -> T:
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
