"""Spark's format ``jobqueue``: the job table as a DataFrame.

Spark runs this in processes of its own, on a cluster on other machines. So it imports no Django and nothing else of
this package, and it travels there by value: an executor needs PyArrow and ADBC, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

FORMAT = "jobqueue"
TABLE = "jobqueue_job"
PAGES_AT_LEAST = 256  # 2 MB: less is not worth a task


class Column(NamedTuple):
    """How a column is read from PostgreSQL, and what it is in Spark."""

    sql: str
    type: str


def _same(name: str, type: str) -> tuple[str, Column]:
    return name, Column(name, type)


# The names are those of the model ``Job``. JSON is text, because its shape is the user's.
COLUMNS: Mapping[str, Column] = dict(
    [
        ("id", Column("id::text", "string")),
        ("queue", Column("queue_id", "string")),
        ("day", Column("(finalized_at AT TIME ZONE 'UTC')::date", "date")),
        _same("name", "string"),
        _same("state", "string"),
        _same("policy", "string"),
        _same("singleton_key", "string"),
        _same("group_key", "string"),
        _same("priority", "int"),
        _same("tags", "array<string>"),
        _same("seq", "bigint"),
        _same("sent_xid", "bigint"),
        _same("claim_xmin", "bigint"),
        _same("created_at", "timestamp"),
        _same("start_after", "timestamp"),
        _same("first_start_after", "timestamp"),
        _same("started_at", "timestamp"),
        _same("assigned_at", "timestamp"),
        _same("attempt_finished_at", "timestamp"),
        _same("last_retry_at", "timestamp"),
        _same("cancel_requested_at", "timestamp"),
        _same("finalized_at", "timestamp"),
        _same("assignee", "string"),
        _same("attempt", "int"),
        _same("retry_count", "int"),
        ("crashes", Column("crashes::int", "int")),
        _same("retry_limit", "int"),
        _same("retry_delay", "int"),
        _same("retry_backoff", "boolean"),
        _same("retry_delay_max", "int"),
        _same("expire_in_seconds", "int"),
        _same("heartbeat_seconds", "int"),
        _same("retention_seconds", "int"),
        _same("delete_after_seconds", "int"),
        _same("delete_failed_after_seconds", "int"),
        _same("reason", "string"),
        _same("fingerprint", "string"),
        _same("note", "string"),
        ("source_id", Column("source_id::text", "string")),
        _same("source_queue", "string"),
        _same("source_key", "string"),
        _same("error", "string"),
        ("attempts", Column("attempts::text", "string")),
        ("carried", Column("carried::text", "string")),
        ("data", Column("data::text", "string")),
        ("output", Column("output::text", "string")),
    ]
)
LIGHT = tuple(name for name in COLUMNS if name not in ("data", "output"))  # what is read unless columns are named

LISTS = {"queue": "queue_id", "state": "state", "policy": "policy", "name": "name"}
MOMENTS = {
    "finalized_before": "finalized_at <",
    "finalized_after": "finalized_at >=",
    "created_before": "created_at <",
    "created_after": "created_at >=",
}
OPTIONS = ("dsn", "password", "columns", "partitions", "snapshot", *LISTS, *MOMENTS)


class Piece(InputPartition):
    """Some pages of one part of the job table; without an end, all further ones."""

    def __init__(self, leaf: str, first: int, end: int | None) -> None:
        super().__init__((leaf, first, end))
        self.leaf, self.first, self.end = leaf, first, end


class JobDataSource(DataSource):
    """``spark.read.format("jobqueue")``. A subclass may be bound to a connection, which then no option shows."""

    conninfo: str = ""  # with the password, so it is no option: options may be shown
    condition: str = ""  # SQL of ours; what users give are options, and quoted

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join(f"`{name}` {COLUMNS[name].type}" for name in self.columns)

    def reader(self, schema: Any) -> JobReader:
        return JobReader(self)

    @property
    def columns(self) -> list[str]:
        return chosen_columns(self.options.get("columns"))


class JobReader(DataSourceReader):
    def __init__(self, source: JobDataSource) -> None:
        options = {name.lower(): value for name, value in source.options.items()}
        check_options(options)
        self.conninfo = source.conninfo or conninfo_of(options)
        self.columns = source.columns
        self.conditions = [*conditions_of(options), *filter(None, [source.condition])]
        self.queues = listed(options.get("queue"))
        self.snapshot = options.get("snapshot")
        self.wanted = positive("partitions", options.get("partitions", "8"))

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the table that can hold such jobs, cut by pages: that needs no index and no statistics."""
        with connected(self.conninfo) as cursor:
            cursor.execute(_leaves(self.queues))
            leaves = [(str(leaf), int(pages)) for leaf, pages in cursor.fetchall()]
        total = sum(pages for _, pages in leaves)
        size = max(PAGES_AT_LEAST, -(-total // self.wanted))
        pieces = [piece for leaf, pages in leaves if pages for piece in cut(leaf, pages, size)]
        return pieces or [Piece(TABLE, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Piece) or partition.end == 0:
            return
        with connected(self.conninfo, self.snapshot) as cursor:
            cursor.execute(self.query(partition))
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    yield batch

    def query(self, piece: Piece) -> str:
        pages = [f"ctid >= '({piece.first},0)'::tid"]
        if piece.end is not None:
            pages.append(f"ctid < '({piece.end},0)'::tid")
        columns = ", ".join(f'{COLUMNS[name].sql} AS "{name}"' for name in self.columns)
        return f"SELECT {columns} FROM {piece.leaf} WHERE {' AND '.join([*pages, *self.conditions])}"


def cut(leaf: str, pages: int, size: int) -> list[Piece]:
    """The last piece is open: rows that were appended meanwhile are in it."""
    starts = list(range(0, pages, size))
    return [Piece(leaf, start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]


# ----------------------------------------------------------------------------------------------------- connections


class connected:
    """A cursor on a connection of its own, read only, in one transaction; of a given snapshot, if one is given."""

    def __init__(self, conninfo: str, snapshot: str | None = None) -> None:
        self.conninfo, self.snapshot = conninfo, snapshot

    def __enter__(self) -> Any:
        from adbc_driver_postgresql import dbapi

        self.connection = dbapi.connect(self.conninfo, autocommit=True)
        try:
            self.cursor = self.connection.cursor()
            self.cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if self.snapshot:
                self.cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(self.snapshot)}")
        except BaseException:
            self.connection.close()
            raise
        return self.cursor

    def __exit__(self, *_: object) -> None:
        self.cursor.close()
        self.connection.close()


def _leaves(queues: list[str]) -> str:
    """The parts of the table, in pages; those of other queues are left out."""
    bounds = [f"'FOR VALUES IN (' || quote_literal({literal(queue)}) || ')'" for queue in queues]
    only = f"AND pg_get_expr(c.relpartbound, c.oid) IN ('DEFAULT', {', '.join(bounds)})" if queues else ""
    return f"""
        SELECT c.oid::regclass::text, pg_relation_size(c.oid) / current_setting('block_size')::int
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = '{TABLE}'::regclass {only} ORDER BY 1"""


# --------------------------------------------------------------------------------------------------------- options


def check_options(options: Mapping[str, str]) -> None:
    for name in options:
        if name not in OPTIONS:
            close = get_close_matches(name, OPTIONS, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"The format {FORMAT!r} has no option {name!r}.{guess} It has {', '.join(OPTIONS)}.")


def conninfo_of(options: Mapping[str, str]) -> str:
    """What libpq needs: the option ``dsn``, with the password that is given apart from it."""
    dsn = options.get("dsn")
    if dsn is None:
        raise ValueError(f"The format {FORMAT!r} needs the option 'dsn', or use read_jobs().")
    password = options.get("password")
    if password is None:
        return dsn
    if "://" in dsn:
        raise ValueError("A dsn that is a URL carries its password itself; give 'host=… dbname=… user=…' instead.")
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    return f"{dsn} password='{escaped}'"


def chosen_columns(text: str | None) -> list[str]:
    names = listed(text) or list(LIGHT)
    for name in names:
        if name not in COLUMNS:
            close = get_close_matches(name, COLUMNS, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"Jobs have no column {name!r}.{guess} They have {', '.join(COLUMNS)}.")
    return list(dict.fromkeys(names))


def listed(text: str | None) -> list[str]:
    """``a,b`` or, for names with commas, a JSON list."""
    if not text:
        return []
    if text.startswith("["):
        return [str(one) for one in json.loads(text)]
    return [one.strip() for one in text.split(",") if one.strip()]


def positive(name: str, text: str) -> int:
    if not str(text).isdigit() or int(text) < 1:
        raise ValueError(f"{name}: expected a number from 1 on, got {text!r}.")
    return int(text)


def conditions_of(options: Mapping[str, str]) -> list[str]:
    """The filters as SQL. Spark would push down what ``where()`` says only if a setting of the session said so."""
    found = []
    for name, column in LISTS.items():
        if values := listed(options.get(name)):
            found.append(f"{column} IN ({', '.join(map(literal, values))})")
    for name, comparison in MOMENTS.items():
        if moment := options.get(name):
            found.append(f"{comparison} {literal(moment)}::timestamptz")
    return found


def literal(value: str) -> str:
    """Quoted so that it is right whatever ``standard_conforming_strings`` says."""
    if "\x00" in value:
        raise ValueError("A text with NUL cannot be in PostgreSQL.")
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"
