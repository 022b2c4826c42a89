"""Tells the play what handlers do, with the hook around every run and the signal at the end of every attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from django_jobqueue.models import Job
from django_jobqueue.services import Failure
from django_jobqueue.signals import job_finished
from django_jobqueue.worker import LocalWorker, work


class Listener(Protocol):
    """An object that is told what workers do. Workers call its methods from their threads."""

    def started(self, worker: str, job: Job) -> None: ...

    def completed(self, worker: str, job: Job) -> None: ...

    def failed(self, worker: str, job: Job, failure: Failure, error: Exception) -> None: ...


_listeners: list[Listener] = []


@contextmanager
def around(job: Job) -> Iterator[None]:
    """``JOBQUEUE["AROUND"]``: the code after ``yield`` runs before the next job of the same key can start."""
    for listener in _listeners:
        listener.started(job.assignee, job)
    yield
    for listener in _listeners:
        listener.completed(job.assignee, job)


def _finished(*, job: Job, failure: Failure | None, error: Any, **kwargs: Any) -> None:
    if failure is not None:
        for listener in _listeners:
            listener.failed(job.assignee, job, failure, error)


@contextmanager
def running(number: int, queues: Sequence[str], listener: Listener) -> Iterator[list[LocalWorker]]:
    """Run ``number`` workers; at the end, each worker finishes the job that it is running."""
    _listeners.append(listener)
    job_finished.connect(_finished, dispatch_uid="play")
    try:
        with ExitStack() as stack:
            yield [
                stack.enter_context(work(queues, concurrency=1, poll_seconds=0.05, name=f"worker-{place}"))
                for place in range(1, number + 1)
            ]
    finally:
        job_finished.disconnect(dispatch_uid="play")
        _listeners.remove(listener)
