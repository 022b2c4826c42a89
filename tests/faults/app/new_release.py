"""A handler that only the release after a deploy has."""

from __future__ import annotations

from django_jobqueue.handlers import JobContext, job

from .jobs import LANES, work


@job(queue=LANES, name="new-work", takes_context=True)
def new_work(context: JobContext) -> None:
    work.function(context)
