"""PostgreSQL functions as expressions for models, querysets and services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import models
from django.db.models import Expression, Func
from django.db.models.functions import Cast
from django.db.models.lookups import In

from .postgresql import ListField

SEQUENCE = "jobqueue_job_seq"
NEXT_SEQ = f"nextval('{SEQUENCE}'::regclass)"
WORKER_LOCK = "hashtextextended('jobqueue worker ' || {}, 0)"  # the key of a worker's session lock


class ColumnDefault(Func):
    """SQL without arguments that is the default of a column.

    A migration contains the SQL and not the class, because a migration must not change when a class changes. A change
    of the class is then a change of the model, which ``makemigrations`` detects.
    """

    def deconstruct(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "django.db.models.Func", (), {"template": self.template, "output_field": self.output_field}


class StatementTimestamp(ColumnDefault):
    """The database's time at the start of this statement.

    Never ``now()``, because that is the start of the transaction: in a long one, a new job would not be due.
    """

    template = "statement_timestamp()"
    output_field = models.DateTimeField()


class NextSeq(ColumnDefault):
    """The next number of the sequence that orders jobs by their sends."""

    template = NEXT_SEQ
    output_field = models.BigIntegerField()


class CurrentSeq(ColumnDefault):
    """The number that was given to this row; defaults are evaluated in the order of the columns."""

    template = f"currval('{SEQUENCE}'::regclass)"
    output_field = models.BigIntegerField()


class CurrentXid(ColumnDefault):
    """The sender's transaction id, for the order audit."""

    template = "(pg_current_xact_id()::text::bigint)"
    output_field = models.BigIntegerField()


# Subqueries, because they are evaluated once per statement and not once per row.
_CURRENT_XID = "(SELECT pg_current_xact_id_if_assigned()::text::bigint)"
_CURRENT_XMAX = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"


class RowXid(Func):
    """The transaction that last wrote this row of the job table, from the 32 bits of its id that the row stores.

    Not exact in two cases. Within a savepoint it is the id of the savepoint, which a snapshot does not list: a row
    written in a savepoint of a transaction that was still open at a snapshot counts as visible in it. And after four
    billion transactions the 32 bits of an old row are those of a new transaction.
    """

    template = f"""GREATEST({_CURRENT_XMAX}
        - (({_CURRENT_XMAX} - "jobqueue_job"."xmin"::text::bigint) & 4294967295), 3)"""
    output_field = models.BigIntegerField()


class IsVisibleIn(Func):
    """Whether a transaction, given by its id, had committed when a snapshot was taken.

    Also true for the current transaction, and for an id that this server cannot have assigned yet: then the row came
    from another server, in a dump.
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
    """Whether a session of this database holds the lock of a worker, given its incarnation."""

    template = f"""EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (l.classid::bigint << 32 | l.objid::bigint) = {WORKER_LOCK.format("(%(expressions)s)::text")})"""
    output_field = models.BooleanField()


def column_size(column: str) -> Func:
    """The bytes that a value takes in its row; unlike its length as text, this costs nothing at an update."""
    return Func(column, function="pg_column_size", output_field=models.IntegerField())


class EmptyJsonList(ColumnDefault):
    template = "'[]'::jsonb"
    output_field = models.JSONField()


class EmptyTextList(ColumnDefault):
    template = "'{}'::text[]"
    output_field = ListField(models.TextField())


class Tid(Expression):
    """The ctid of the row: the fastest way to find a row again that this transaction has locked."""

    output_field = models.TextField()
    alias = ""

    def resolve_expression(self, query: Any = None, *args: Any, **options: Any) -> Tid:
        if self.alias:
            return self  # in a subquery, which the query around it resolves again
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
    """The quoted name of a table within a query, in any version of Django."""
    quote: Any = getattr(compiler, "quote_name", None) or compiler.quote_name_unless_alias  # before Django 6.1
    return str(quote(alias))


class LiesAt(Func):
    """Whether the ctid of the row is in an array, which is evaluated before the rows are read."""

    template = "%(expressions)s)"
    arg_joiner = " = ANY("
    output_field = models.BooleanField()


class Unnest(Func):
    """The elements of an array of ids, each as a row."""

    function = "unnest"
    set_returning = True
    output_field = models.UUIDField()


class IsInBatches(Func):
    """Whether an operation changed this job.

    An operation may have changed a million jobs. So of its batches only those are read that lie within the sequence
    numbers by which the query is bounded itself: lists are read in windows of numbers.
    """

    output_field = models.BooleanField()

    def __init__(self, operation: UUID) -> None:
        super().__init__("id")
        self.operation = operation

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> tuple[str, tuple[Any, ...]]:
        (id,) = self.get_source_expressions()
        low, high = _seq_bounds(compiler.query.where)
        every_batch = apps.get_model("jobqueue", "OperationBatch").objects.using(connection.alias)
        batches = every_batch.filter(operation=self.operation, last_seq__gt=low, first_seq__lte=high)
        sql, params = compiler.compile(In(id, batches.values(each=Unnest("ids")).query))
        return sql, tuple(params)


def _seq_bounds(where: Any) -> tuple[int, int]:
    """The numbers between which a WHERE clause bounds the column ``seq``: greater than one, and up to the other."""
    low, high = -1, 2**63 - 1
    if where.negated or where.connector != "AND":
        return low, high
    for child in where.children:
        if hasattr(child, "children"):
            inner = _seq_bounds(child)
        elif getattr(getattr(child, "lhs", None), "target", None) is None or child.lhs.target.column != "seq":
            continue
        else:
            inner = {"gt": (child.rhs, high), "lte": (low, child.rhs)}.get(child.lookup_name, (low, high))
        low, high = max(low, inner[0]), min(high, inner[1])
    return low, high


class WithoutKeys(Func):
    """A JSON object without some of its keys."""

    template = "(%(expressions)s)"
    arg_joiner = " - "
    output_field = models.JSONField()

    def __init__(self, column: str, *keys: str) -> None:
        super().__init__(column, *(Cast(models.Value(key), models.TextField()) for key in keys))


class Seconds(Func):
    """A column of seconds as an interval."""

    template = "(%(expressions)s * interval '1 second')"
    output_field = models.DurationField()
