"""Spark's format ``jobqueue``: the job table as a DataFrame.

Spark runs this module in its own processes, on a cluster on other machines. So it imports neither Django nor other
modules of this package, and Spark pickles it by value: an executor needs only PyArrow and ADBC.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

FORMAT = "jobqueue"
TABLE = "jobqueue_job"
PAGES_AT_LEAST = 256  # 2 MB: smaller parts are not worth a task


class Column(NamedTuple):
    """The SQL that reads a column from PostgreSQL, and its type in Spark."""

    sql: str
    type: str


def _same(name: str, type: str) -> tuple[str, Column]:
    return name, Column(name, type)


# The names are those of the model ``Job``. JSON is text, because its structure differs from job to job.
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
        _same("error_summary", "string"),
        ("attempts", Column("attempts::text", "string")),
        ("carried", Column("carried::text", "string")),
        ("data", Column("data::text", "string")),
        ("output", Column("output::text", "string")),
    ]
)
LIGHT = tuple(name for name in COLUMNS if name not in ("data", "output"))  # the columns that are read by default

DOCUMENTS, TEXTS = (
    ("data", "output", "attempts", "carried"),
    ("error", "error_summary", "note"),
)  # JSON, and texts for people

LISTS = {"queue": "queue_id", "state": "state", "policy": "policy", "name": "name"}
MOMENTS = {
    "finalized_before": "finalized_at <",
    "finalized_after": "finalized_at >=",
    "created_before": "created_at <",
    "created_after": "created_at >=",
}
OPTIONS = ("dsn", "password", "columns", "partitions", "snapshot", *LISTS, *MOMENTS)


class Piece(InputPartition):
    """A range of pages of one partition of the job table; without an end, all pages from the first on."""

    def __init__(self, leaf: str, first: int, end: int | None) -> None:
        super().__init__((leaf, first, end))
        self.leaf, self.first, self.end = leaf, first, end


class JobDataSource(DataSource):
    """``spark.read.format("jobqueue")``. A subclass may be bound to a connection, so that no option contains it."""

    conninfo: str = ""  # with the password, so it is not an option: Spark may show options
    condition: str = ""  # trusted SQL; values of users are options, which are quoted
    hidden: Any = None  # a StoredText: hides sensitive values in what is read
    rest: float = 0.0  # seconds that a task pauses for each second that it and the consumers of its rows have worked
    commit: Mapping[str, Any] | None = None  # the statements of a write's commit: see engine/sql/staging.py
    max_bytes: int = 0  # the largest data of a job

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join(f"`{name}` {COLUMNS[name].type}" for name in self.columns)

    def reader(self, schema: Any) -> JobReader:
        return JobReader(self)

    def writer(self, schema: Any, overwrite: bool) -> JobWriter:
        if overwrite:
            raise ValueError("Jobs are added, never overwritten: write with mode('append').")
        return JobWriter(self, schema)

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
        self.rest, self.hidden = source.rest, source.hidden

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions that can hold these jobs, cut into ranges of pages, which needs no index and no statistics."""
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
            began = None
            for batch in cursor.fetch_record_batch():
                if began is not None:  # a part of one batch is too small to need a pause
                    time.sleep(self.rest * (time.monotonic() - began))
                began = time.monotonic()
                if batch.num_rows:
                    yield batch if self.hidden is None else hidden_in(batch, self.hidden)

    def query(self, piece: Piece) -> str:
        pages = [f"ctid >= '({piece.first},0)'::tid"]
        if piece.end is not None:
            pages.append(f"ctid < '({piece.end},0)'::tid")
        columns = ", ".join(f'{COLUMNS[name].sql} AS "{name}"' for name in self.columns)
        return f"SELECT {columns} FROM {piece.leaf} WHERE {' AND '.join([*pages, *self.conditions])}"


def hidden_in(batch: Any, stored: Any) -> Any:
    """The batch without the sensitive values of its documents and texts."""
    import pyarrow

    names = batch.schema.names
    handlers = batch.column(names.index("name")).to_pylist()
    for place, name in enumerate(names):
        if name not in DOCUMENTS and name not in TEXTS:
            continue
        values = batch.column(place).to_pylist()
        if name == "data":
            shown = [stored.document(text, handler) for text, handler in zip(values, handlers, strict=True)]
        else:
            shown = [stored.document(text) if name in DOCUMENTS else stored.error(text) for text in values]
        if shown != values:
            batch = batch.set_column(place, batch.schema.field(place), pyarrow.array(shown, batch.schema.types[place]))
    return batch


def cut(leaf: str, pages: int, size: int) -> list[Piece]:
    """Cut a partition into pieces; the last piece has no end, so that it includes rows that were appended since."""
    starts = list(range(0, pages, size))
    return [Piece(leaf, start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]


# --------------------------------------------------------------------------------------------------------- writing

STAGED = "jobqueue_stagedjob"
# The columns of a DataFrame, with the staged column and the type of each; ``order`` becomes one of ORDERS, by type.
WRITTEN = {
    "id": ("job", "string"),
    "name": ("name", "string"),
    "singleton_key": ("singleton_key", "string"),
    "group_key": ("group_key", "string"),
    "priority": ("priority", "int"),
    "tags": ("tags", "array<string>"),
    "data": ("data", "string"),
    "delay": ("delay", "double"),
    "start_after": ("start_after", "timestamp"),
    "place": ("place", "bigint"),
    "identity": ("identity", "string"),
}
ORDERS = {"bigint": "number", "double": "real", "string": "text"}
WRITE_OPTIONS = ("dsn", "password", "queue", "write_id", "mode", "only", "without")


class Staged(WriterCommitMessage):
    """The rows that one attempt of a task staged: only attempts that ended and that Spark chose are committed."""

    def __init__(self, partition: int, attempt: int, rows: int) -> None:
        self.partition, self.attempt, self.rows = partition, attempt, rows


class JobWriter(DataSourceArrowWriter):
    """Tasks stage rows by COPY; the driver's commit makes jobs of them, all or none."""

    def __init__(self, source: JobDataSource, schema: Any) -> None:
        options = {name.lower(): value for name, value in source.options.items()}
        check_options(options, WRITE_OPTIONS)
        if source.commit is None:
            raise ValueError("To write jobs, register the format with django_jobqueue.pipeline.register(spark).")
        if not options.get("queue"):
            raise ValueError("To write jobs, name the queue: option('queue', …).")
        self.conninfo = source.conninfo or conninfo_of(options)
        self.statements, self.max_bytes = dict(source.commit), source.max_bytes
        self.queue = options["queue"]
        self.write_id = options.get("write_id") or uuid4().hex
        self.store = options.get("mode") or "store"  # the statement that makes jobs of the staged rows
        self.data = data_expression(listed(options.get("only")), listed(options.get("without")))
        self.columns = staged_columns({field.name: field.dataType.simpleString() for field in schema.fields})

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
        total = 0

        def batches(first: Any) -> Iterator[Any]:
            nonlocal total
            for batch in chain([first], iterator):
                yield self._staged(batch, partition, attempt, total)
                total += batch.num_rows

        first = next(iter(iterator), None)
        if first is not None:
            import pyarrow

            schema = self._staged(first, partition, attempt, 0).schema
            reader = pyarrow.RecordBatchReader.from_batches(schema, batches(first))
            with opened(self.conninfo) as cursor:
                cursor.adbc_ingest(STAGED, reader, mode="append")
        return Staged(partition, attempt, total)

    def _staged(self, batch: Any, partition: int, attempt: int, before: int) -> Any:
        """The batch with the columns of the staging table, also the write, the task and the number of each row."""
        import pyarrow

        number = batch.num_rows
        arrays = [self._checked(name, batch.column(name)) for name in self.columns]
        more = {
            "write": pyarrow.array([self.write_id] * number, pyarrow.string()),
            "partition": pyarrow.array([partition] * number, pyarrow.int32()),
            "attempt": pyarrow.array([attempt] * number, pyarrow.int64()),
            "row": pyarrow.array(range(before, before + number), pyarrow.int64()),
        }
        return pyarrow.RecordBatch.from_arrays([*arrays, *more.values()], [*self.columns.values(), *more])

    def _checked(self, name: str, column: Any) -> Any:
        import pyarrow.compute

        if name == "data" and self.max_bytes:
            longest = pyarrow.compute.max(pyarrow.compute.binary_length(column)).as_py() or 0
            if longest > self.max_bytes:
                raise ValueError(f"data: {longest} bytes, but JOBQUEUE['MAX_DATA_BYTES'] is {self.max_bytes}.")
        return column

    def commit(self, messages: Any) -> None:
        """Make jobs of the staged rows in one transaction. Rows of attempts that Spark did not choose are deleted."""
        staged = [message for message in messages if isinstance(message, Staged) and message.rows]
        pairs = [f"({one.partition}, {one.attempt})" for one in staged] or ["(-1, -1)"]
        number = sum(one.rows for one in staged)
        values = {"write": literal(self.write_id), "queue": literal(self.queue), "number": number, "data": self.data,
                  "attempts": f"VALUES {', '.join(pairs)}"}  # fmt: skip
        with opened(self.conninfo) as cursor:
            for statement in self.statements["begin"].split("; "):
                cursor.execute(statement)
            self._store(cursor, values, number)
            cursor.execute(self.statements["tidy"].format(**values))
            cursor.execute("COMMIT")
            cursor.execute(self.statements["notify"].format(**values))
            cursor.fetchall()

    def _store(self, cursor: Any, values: dict[str, Any], number: int) -> None:
        look, record, count = (
            _answer(cursor, statement.format(**values))
            for statement in (self.statements["look"], self.statements["record"], self.statements["count"])
        )
        if not look:
            raise ValueError(f"There is no queue named {self.queue!r}.")
        if not record:
            return  # it was committed before
        ((found, keyless),) = count
        if found != number:
            raise ValueError(
                f"{number} rows were staged, but {found} exist; the server may have crashed. Repeat the write."
            )
        ((policy,),) = look
        if keyless and policy == self.statements["ordered"]:
            raise ValueError(f"FIFO queues require a singleton_key; {keyless} rows for {self.queue!r} have none.")
        has_place = policy == self.statements["ordered"] or (policy == self.statements["standard"] and keyless == found)
        orders = [column for column in (*ORDERS.values(), "place") if column in self.columns.values()]
        values |= {
            "n": self.statements["numbers"][orders[0] if orders else "row"],
            "lane": self.statements["lanes"][policy].format(**values),
            "place": self.statements["places"][policy].format(**values),
        }
        stored = self._stored(cursor, values, has_place)
        cursor.execute(self.statements["stored"].format(stored=stored, **values))

    def _stored(self, cursor: Any, values: dict[str, Any], has_place: bool) -> int:
        """How many jobs were made, or would be made by a dry run."""
        if self.store in ("count_rows", "count_again"):
            return self._count(cursor, values)
        if self.store == "store" or has_place:
            cursor.execute(self.statements[self.store].format(**values))
            return int(cursor.rowcount)
        (number, _), *refused = _answer(cursor, self.statements[f"{self.store}_or_refuse"].format(**values))
        self._refuse(cursor, refused)
        return int(number)

    def _count(self, cursor: Any, values: dict[str, Any]) -> int:
        """A dry run: refused rows and the first of the others stay staged, for the sender to report."""
        (number, _), *answered = _answer(cursor, self.statements[self.store].format(**values))
        self._refuse(cursor, [(row, None) for row, what in answered if what == "refused"])
        if shown := ", ".join(str(row) for row, what in answered if what == "shown"):
            write = literal(shown_write(self.write_id))
            cursor.execute(self.statements["shown"].format(shown=write, some=shown))
        return int(number)

    def _refuse(self, cursor: Any, refused: Sequence[tuple[int, str | None]]) -> None:
        write = literal(refused_write(self.write_id))
        for start in range(0, len(refused), 1_000):
            some = refused[start : start + 1_000]
            ids = ", ".join(str(row) for row, _ in some)
            cursor.execute(self.statements["refuse"].format(refused=write, some=ids))
            if known_by := ", ".join(literal(id) for _, id in some if id is not None):
                cursor.execute(self.statements["forget"].format(some=known_by))

    def abort(self, messages: Any) -> None:
        with opened(self.conninfo) as cursor:
            cursor.execute(self.statements["tidy"].format(write=literal(self.write_id)))


def _answer(cursor: Any, statement: str) -> Any:
    cursor.execute(statement)
    return cursor.fetchall()


def refused_write(write_id: str) -> str:
    """The name under which rows that the policy of the queue refused stay staged."""
    return f"{write_id} refused"


def shown_write(write_id: str) -> str:
    """The name under which the first rows of a dry run stay staged."""
    return f"{write_id} shown"


def data_expression(only: Sequence[str], without: Sequence[str]) -> str:
    """SQL for the data of a job: the staged document, or only these keys of it, or all keys without these."""
    if only:
        names = ", ".join(map(literal, only))
        chosen = f"SELECT jsonb_object_agg(e.key, e.value) FROM jsonb_each(s.data::jsonb) e WHERE e.key IN ({names})"
        return f"COALESCE(({chosen}), '{{}}')"
    return f"s.data::jsonb - ARRAY[{', '.join(map(literal, without))}]" if without else "s.data::jsonb"


def staged_columns(given: Mapping[str, str]) -> dict[str, str]:
    """The staged column of each column of the DataFrame. Raises ``ValueError``."""
    columns = {}
    for name, type in given.items():
        if name == "order" and type in ORDERS:
            columns[name] = ORDERS[type]
        elif name in WRITTEN and type == WRITTEN[name][1]:
            columns[name] = WRITTEN[name][0]
        elif name in WRITTEN or name == "order":
            wanted = WRITTEN[name][1] if name in WRITTEN else " or ".join(ORDERS)
            raise ValueError(f"The column {name!r} must be {wanted}, not {type}.")
        else:
            raise ValueError(f"Jobs have no column {name!r}. They have {', '.join([*WRITTEN, 'order'])}.")
    return columns


# ----------------------------------------------------------------------------------------------------- connections


class opened:
    """A cursor on its own connection in autocommit; a statement may begin a transaction."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo

    def __enter__(self) -> Any:
        from adbc_driver_postgresql import dbapi

        self.connection = dbapi.connect(self.conninfo, autocommit=True)
        self.cursor = self.connection.cursor()
        return self.cursor

    def __exit__(self, *_: object) -> None:
        self.cursor.close()
        self.connection.close()  # an open transaction is rolled back


class connected(opened):
    """The same in one read-only transaction, with the snapshot of another transaction if it is named."""

    def __init__(self, conninfo: str, snapshot: str | None = None) -> None:
        super().__init__(conninfo)
        self.snapshot = snapshot

    def __enter__(self) -> Any:
        cursor = super().__enter__()
        try:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if self.snapshot:
                cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(self.snapshot)}")
        except BaseException:
            self.__exit__()
            raise
        return cursor


def _leaves(queues: list[str]) -> str:
    """A query for the partitions of the table and their number of pages, without partitions of other queues."""
    bounds = [f"'FOR VALUES IN (' || quote_literal({literal(queue)}) || ')'" for queue in queues]
    only = f"AND pg_get_expr(c.relpartbound, c.oid) IN ('DEFAULT', {', '.join(bounds)})" if queues else ""
    return f"""
        SELECT c.oid::regclass::text, pg_relation_size(c.oid) / current_setting('block_size')::int
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = '{TABLE}'::regclass {only} ORDER BY 1"""


# --------------------------------------------------------------------------------------------------------- options


def check_options(options: Mapping[str, str], known: Sequence[str] = OPTIONS) -> None:
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"The format {FORMAT!r} has no option {name!r}.{guess} It has {', '.join(known)}.")


def conninfo_of(options: Mapping[str, str]) -> str:
    """The connection string for libpq: the option ``dsn``, with the option ``password``. Raises ``ValueError``."""
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
    """The values of an option: ``a,b`` or, if names contain commas, a JSON list."""
    if not text:
        return []
    if text.startswith("["):
        return [str(one) for one in json.loads(text)]
    return [one.strip() for one in text.split(",") if one.strip()]


def positive(name: str, text: str) -> int:
    if not str(text).isdigit() or int(text) < 1:
        raise ValueError(f"{name}: expected 1 or more, got {text!r}.")
    return int(text)


def conditions_of(options: Mapping[str, str]) -> list[str]:
    """The filters as SQL. Spark pushes ``where()`` down only if a setting of the session allows it."""
    found = []
    for name, column in LISTS.items():
        if values := listed(options.get(name)):
            found.append(f"{column} IN ({', '.join(map(literal, values))})")
    for name, comparison in MOMENTS.items():
        if moment := options.get(name):
            found.append(f"{comparison} {literal(moment)}::timestamptz")
    return found


def literal(value: str) -> str:
    """The value quoted for SQL, with either value of ``standard_conforming_strings``. Raises ``ValueError``."""
    if "\x00" in value:
        raise ValueError("PostgreSQL cannot store a text with NUL.")
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"
