"""PostgreSQL functions that models, querysets and services write into their SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import models
from django.db.models import Expression, Func

from .postgresql import ListField

SEQUENCE = "jobqueue_job_seq"
NEXT_SEQ = f"nextval('{SEQUENCE}'::regclass)"
WORKER_LOCK = "hashtextextended('jobqueue worker ' || {}, 0)"  # the key of a worker's session lock


class ColumnDefault(Func):
    """SQL without arguments that is the default of a column.

    A migration names no class of ours but spells out the SQL, because what it does must not change when a class does. A
    change of the class is then a change of the model, which ``makemigrations`` finds.
    """

    def deconstruct(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "django.db.models.Func", (), {"template": self.template, "output_field": self.output_field}


class StatementTimestamp(ColumnDefault):
    """The database's time at the start of this statement.

    Never ``now()``, because that is the start of the transaction: in a long one a job just sent would not be due.
    """

    template = "statement_timestamp()"
    output_field = models.DateTimeField()


class NextSeq(ColumnDefault):
    """The next number in the order of sends."""

    template = NEXT_SEQ
    output_field = models.BigIntegerField()


class CurrentSeq(ColumnDefault):
    """The number that this very row was given: defaults are filled in the order of the columns."""

    template = f"currval('{SEQUENCE}'::regclass)"
    output_field = models.BigIntegerField()


class CurrentXid(ColumnDefault):
    """The sender's transaction id, for the order audit."""

    template = "(pg_current_xact_id()::text::bigint)"
    output_field = models.BigIntegerField()


# Subqueries, because they are asked once for each statement and not for each row.
_CURRENT_XID = "(SELECT pg_current_xact_id_if_assigned()::text::bigint)"
_CURRENT_XMAX = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"


class RowXid(Func):
    """The transaction that last wrote this row of the job table, from the 32 bits that the row keeps of it.

    Not exact in two cases. Within a savepoint it is the id of the savepoint, which a snapshot does not list: so a row
    that was written in a savepoint of a transaction still open at a snapshot counts as visible in it. And after four
    thousand million transactions the 32 bits of an old row mean a new one.
    """

    template = f"""GREATEST({_CURRENT_XMAX}
        - (({_CURRENT_XMAX} - "jobqueue_job"."xmin"::text::bigint) & 4294967295), 3)"""
    output_field = models.BigIntegerField()


class IsVisibleIn(Func):
    """Whether a transaction, given by its id, had committed when a snapshot was taken.

    Also if it is this very transaction, or none that this server can have had: then the row came from another, in a
    dump.
    """

    output_field = models.BooleanField()

    def __init__(self, xid: Any, snapshot: str) -> None:
        super().__init__(xid, models.Value(snapshot, output_field=models.TextField()))

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> tuple[str, tuple[Any, ...]]:
        (xid, of_xid), (snapshot, of_snapshot) = map(compiler.compile, self.get_source_expressions())
        sql = (
            f"({xid} IS NOT DISTINCT FROM {_CURRENT_XID} OR {xid} >= {_CURRENT_XMAX}"
            f" OR pg_visible_in_snapshot(({xid})::text::xid8, {snapshot}::pg_snapshot))"
        )
        return sql, (*of_xid, *of_xid, *of_xid, *of_snapshot)


class HasSessionLock(Func):
    """Whether some session of this database holds the lock of a worker, given its incarnation."""

    template = f"""EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (l.classid::bigint << 32 | l.objid::bigint) = {WORKER_LOCK.format("(%(expressions)s)::text")})"""
    output_field = models.BooleanField()


def column_size(column: str) -> Func:
    """How many bytes a value takes in its row: unlike its length as text, this costs nothing at an update."""
    return Func(column, function="pg_column_size", output_field=models.IntegerField())


class EmptyJsonList(ColumnDefault):
    template = "'[]'::jsonb"
    output_field = models.JSONField()


class EmptyTextList(ColumnDefault):
    template = "'{}'::text[]"
    output_field = ListField(models.TextField())


class Tid(Expression):
    """Where the row lies: the quickest way back to a row that this transaction has locked."""

    output_field = models.TextField()
    alias = ""

    def resolve_expression(self, query: Any = None, *args: Any, **options: Any) -> Tid:
        if self.alias:
            return self  # of a subquery, which is resolved once more by the query around it
        resolved = self.copy()
        resolved.alias = query.get_initial_alias()
        return resolved

    def relabeled_clone(self, change_map: Mapping[str, str]) -> Tid:
        clone = self.copy()
        clone.alias = change_map.get(self.alias, self.alias)
        return clone

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return f'{quoted(compiler, self.alias)}."ctid"', ()


def quoted(compiler: Any, alias: str) -> str:
    """The name of a table within a query, in the quotes of this version of Django."""
    quote: Any = getattr(compiler, "quote_name", None) or compiler.quote_name_unless_alias  # before Django 6.1
    return str(quote(alias))


class LiesAt(Func):
    """Whether the row lies at one of these places, an array that is made before the rows are read."""

    template = "%(expressions)s)"
    arg_joiner = " = ANY("
    output_field = models.BooleanField()


class Seconds(Func):
    """A column of seconds as an interval."""

    template = "(%(expressions)s * interval '1 second')"
    output_field = models.DurationField()
