"""Moving rows into the past, because clocks are not frozen and tests do not sleep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connection
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


@contextmanager
def records_unguarded() -> Iterator[None]:
    """Meanwhile the triggers that keep the records of operations are off, so that a test can write into the past."""
    tables = ("operation", "operation_batch")
    with connection.cursor() as cursor:
        for name in tables:
            table = f"jobqueue_{name.replace('_', '')}"
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER jobqueue_keep_{name}")
        try:
            yield
        finally:
            for name in tables:
                table = f"jobqueue_{name.replace('_', '')}"
                cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER jobqueue_keep_{name}")


def rewrite_operation(operation: Operation, **columns: Any) -> Operation:
    """Write these columns of the record, which its trigger refuses otherwise."""
    with records_unguarded():
        Operation.objects.filter(pk=operation.pk).update(**columns)
    operation.refresh_from_db()
    return operation
