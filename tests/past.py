"""Moving rows into the past, because clocks are not frozen and tests do not sleep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models.expressions import Combinable
from django.utils import timezone

from django_jobqueue.expressions import StatementTimestamp
from django_jobqueue.models import Job, Operation


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


def left_alone(operation: Operation, seconds: float = 60) -> Operation:
    """As if the process that advances it had ended that long ago."""
    then = timezone.now() - timedelta(seconds=seconds)
    operation.refresh_from_db()
    cursor = {**(operation.cursor or {}), "advanced_at": then.isoformat()}
    Operation.objects.filter(pk=operation.pk).update(cursor=cursor)
    return operation
