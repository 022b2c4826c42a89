"""PostgreSQL functions that models, querysets and services write into their SQL."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Func

SEQUENCE = "jobqueue_job_seq"
WORKER_LOCK = "hashtextextended('jobqueue worker ' || {}, 0)"  # the key of a worker's session lock


class StatementTimestamp(Func):
    """The database's time at the start of this statement.

    Never ``now()``, because that is the start of the transaction: in a long one a job just sent would not be due.
    """

    template = "statement_timestamp()"
    output_field = models.DateTimeField()


class NextSeq(Func):
    """The next number in the order of sends."""

    template = f"nextval('{SEQUENCE}'::regclass)"
    output_field = models.BigIntegerField()


class CurrentSeq(Func):
    """The number that this very row was given: defaults are filled in the order of the columns."""

    template = f"currval('{SEQUENCE}'::regclass)"
    output_field = models.BigIntegerField()


class CurrentXid(Func):
    """The sender's transaction id, for the order audit."""

    template = "(pg_current_xact_id()::text::bigint)"
    output_field = models.BigIntegerField()


class HasSessionLock(Func):
    """Whether some session of this database holds the lock of a worker, given its incarnation."""

    template = f"""EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (l.classid::bigint << 32 | l.objid::bigint) = {WORKER_LOCK.format("(%(expressions)s)::text")})"""
    output_field = models.BooleanField()


class ColumnSize(Func):
    """How many bytes a value takes in its row: unlike its length as text, this costs nothing at an update."""

    function = "pg_column_size"
    output_field = models.IntegerField()


class EmptyJsonList(Func):
    template = "'[]'::jsonb"
    output_field = models.JSONField()


class EmptyTextList(Func):
    template = "'{}'::text[]"

    def __init__(self, *expressions: Any, **extra: Any) -> None:
        from django.contrib.postgres.fields import ArrayField

        super().__init__(*expressions, output_field=ArrayField(models.TextField()), **extra)


class Tid(Func):
    """Where the row lies: the quickest way back to a row that this transaction has locked."""

    template = '"jobqueue_job"."ctid"'
    output_field = models.TextField()


class Seconds(Func):
    """A column of seconds as an interval."""

    template = "(%(expressions)s * interval '1 second')"
    output_field = models.DurationField()
