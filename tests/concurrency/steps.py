"""What tests of races do in one word."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django_jobqueue import services
from django_jobqueue.models import Job, Queue

from .sessions import scalar


def sent(queue: Queue, key: str = "a", **options: Any) -> Job:
    job: Job | None = services.send(queue.name, singleton_key=key, **options)
    assert job is not None
    return job


def fetched(queue: Queue, limit: int = 10, **options: Any) -> list[Job]:
    return services.fetch(queue.name, limit, **options)


def running(queue: Queue, *keys: str, **options: Any) -> list[Job]:
    """A job of each key, sent and claimed."""
    for key in keys:
        sent(queue, key)
    jobs = fetched(queue, **options)
    assert [job.singleton_key for job in jobs] == list(keys)
    return jobs


def dead(queue: Queue, key: str = "a") -> Job:
    """A job that has failed for good."""
    sent(queue, key, retry_limit=0)
    [job] = fetched(queue)
    services.fail(job, "it failed")
    return job


def state_of(job: Job) -> str:
    return Job.objects.values_list("state", flat=True).get(pk=job.pk)


def row_of(job: Job) -> dict[str, Any]:
    """All of the row: two of them are equal only if nothing was changed."""
    return dict(Job.objects.filter(pk=job.pk).values().get())


def lock_row(id: UUID) -> None:
    """What a stranger does who edits a job by hand."""
    scalar("SELECT id FROM jobqueue_job WHERE id = %s FOR UPDATE", id)
