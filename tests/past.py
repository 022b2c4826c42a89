"""Moving rows into the past, because clocks are not frozen and nobody sleeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models.expressions import Combinable

from django_jobqueue.expressions import StatementTimestamp
from django_jobqueue.models import Job


def ago(**delta: float) -> Combinable:
    """The database's time, that long ago."""
    return StatementTimestamp() - timedelta(**delta)


def rewrite(job: Job, **columns: Any) -> Job:
    """Write these columns past the verbs, and read the job back."""
    Job.objects.filter(pk=job.pk).update(**columns)
    return reread(job)


def reread(job: Job) -> Job:
    """The row as it is now, as another object."""
    return Job.objects.get(pk=job.pk)
