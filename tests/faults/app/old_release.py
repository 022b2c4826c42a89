"""A handler that only the release before a deploy has."""

from __future__ import annotations

from django_jobqueue.handlers import JobContext, job

from .jobs import LANES, work


@job(queue=LANES, name="old-work", takes_context=True)
def old_work(context: JobContext) -> None:
    work.function(context)
