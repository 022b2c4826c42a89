"""Send jobs from files (CSV, JSON lines, Parquet): each row is sent once with exactly its data, or set aside.

A row is identified by the name of its file, its content, its number among equal rows, the mapping, the queue, the
handler and the name of the batch. If rows are added to a file, only the new rows are sent, and a changed row is a new
row. The line number is not part of the identity: if the first row is deleted, no other row is sent again. The
identities of sent rows are stored in ``SentRow``, also after their jobs were deleted.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from glob import glob, has_magic
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark import StorageLevel, cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from ..conf import get_settings
from ..engine.databases import database, rows
from ..exceptions import InvalidOption
from ..models import JobWrite, Queue, StagedJob
from ..services.queues import find_queue
from ..text import MAX_TAG_LENGTH, MAX_TAGS, check_text
from . import row_files
from .datasource import data_expression, refused_write, shown_write
from .failures import explained
from .parquet_rows import files_in, rows_of_parquet
from .progress import Progress, Tell, tell_nobody, watched
from .row_files import COLUMNS, Plan, Source, SourceFile, columns_of, header_of
from .session import given_or_started, view_of
from .set_aside import AsideFile
from .writing import store

cloudpickle.register_pickle_by_value(row_files)  # type: ignore[no-untyped-call] # executors do not need this package

FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
COMPRESSED = (".gz", ".bz2", ".xz")
_STAGED_AS = {"key": "singleton_key", "order_by": "order"}  # the other options are staged under their own names
_ROWS_OF_A_FILE = 40  # bits for the number of a row; the bits above them hold the number of its file


@dataclass(frozen=True, slots=True)
class Mapping:
    """Which column of the file becomes which option of a job; the other columns become its data."""

    key: str | None = None
    order_by: str | None = None
    data: tuple[str, ...] = ()
    id: str | None = None
    group_key: str | None = None
    priority: str | None = None
    tags: str | None = None
    delay: str | None = None
    start_after: str | None = None
    name: str | None = None  # the handler itself, not a column

    def columns(self) -> dict[str, str]:
        given = {"key": self.key, "order_by": self.order_by, "id": self.id, "group_key": self.group_key,
                 "priority": self.priority, "tags": self.tags, "delay": self.delay,
                 "start_after": self.start_after}  # fmt: skip
        return {option: column for option, column in given.items() if column is not None}

    def identity(self) -> dict[str, Any]:
        """The part of the mapping that identifies rows; the order in which they are sent is not part of it."""
        return {option: value for option, value in asdict(self).items() if option != "order_by"}


@dataclass(slots=True)
class BulkSent:
    """How many rows were sent, known or bad; bad rows are in the file ``aside``, each with its line and the reason.

    After a dry run, ``new`` is how many jobs would be sent, and ``first`` are the first of these jobs.
    """

    rows: int = 0
    sent: int = 0
    new: int = 0
    known: int = 0  # sent before, so not sent again
    bad: int = 0
    aside: str = ""
    first: list[dict[str, Any]] = field(default_factory=list)


def bulk_send(
    files: Iterable[str],
    *,
    queue: str,
    mapping: Mapping | None = None,
    format: str | None = None,
    aside: str | Path | None = None,
    batch: str = "",
    again: bool = False,
    encoding: str = "",
    delimiter: str = ",",
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    tell: Tell = tell_nobody,
    using: str | None = None,
) -> BulkSent:
    """Send a job for each good row of these files, all or none, in the order of files and rows.

    Rows that were sent before are not sent again, unless ``again`` is true. ``batch`` is a name that distinguishes
    these files from other files that have the same names and equal rows. CSV is read as RFC 4180 says, in the encoding
    of its byte order mark, or else in ``encoding``, by default UTF-8. Raises ``InvalidOption``, ``QueueNotFound``,
    ``SparkUnavailable`` and ``LakeProblem`` (a file or Spark's disk cannot be used); then nothing was sent.
    """
    using = database(using)
    target = find_queue(queue, using)
    wish = mapping or Mapping()
    if target.is_ordered and wish.key is None:
        raise InvalidOption("key", f"{queue!r} is ordered: say which column is the key", hint="--key COLUMN")
    if again and wish.id is not None:
        raise InvalidOption("again", "an id cannot be sent twice", hint="Leave out --again or --id-column.")
    if wish.name is not None:
        check_text(wish.name, option="name", max_length=255)
    given = list(files)
    kind = _check_format(format) if format else _format_of(given)
    found = _found(given)
    plan = _plan(target, wish, check_text(batch, option="batch", max_length=200), encoding, delimiter)
    if kind == "csv":
        with explained("the files to send"):
            _check_headers(found, plan)
    place = AsideFile(Path(aside) if aside is not None else Path(f"{found[0][0].name}.bad.jsonl"))
    place.check([file.path for file, _ in found])
    call = _Call(kind, found, target.name, wish, plan, place, again, dry_run, tell, using)
    with explained("the files to send"), given_or_started(spark, master) as own:
        return call.run(own)


# ---------------------------------------------------------------------------------------------------- before Spark


def _check_format(given: str) -> str:
    if given not in FORMATS.values():
        raise InvalidOption("format", f"expected csv, json or parquet, got {given!r}")
    return given


def _format_of(paths: list[str]) -> str:
    if not paths:
        raise InvalidOption("files", "expected at least one")
    kinds = {_format_of_one(path) for path in paths}
    if len(kinds) != 1 or None in kinds:
        raise InvalidOption("format", f"unknown for {paths[0]!r}", hint="Give --format csv, json or parquet.")
    return str(kinds.pop())


def _format_of_one(path: str) -> str | None:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return FORMATS.get(suffixes[-1]) if suffixes else None


def _found(given: list[str]) -> list[tuple[SourceFile, str]]:
    """Every file with the folder that the caller named, in the order of the call; files of a folder by name."""
    once: dict[tuple[str, str], tuple[str, str]] = {}  # a file that is named twice is read once
    for pair in (pair for one in given for pair in _paths(one)):
        path = pair[0]
        once.setdefault((os.path.basename(path), path if "://" in path else os.path.realpath(path)), pair)
    paths = list(once.values())
    if not paths:
        raise InvalidOption("files", f"{given[0]!r} holds no file")
    return [(SourceFile(place, os.path.basename(path), path), base) for place, (path, base) in enumerate(paths)]


def _paths(given: str) -> Iterator[tuple[str, str]]:
    given = given.removeprefix("file://")
    if "://" in given:
        if has_magic(given):
            raise InvalidOption(
                "files", f"{given!r} is a pattern, and patterns match only local files", hint="Name each."
            )
        yield given, ""
        return
    matching = sorted(glob(given)) if has_magic(given) and not os.path.exists(given) else [given]
    if not matching:
        raise InvalidOption("files", f"no file matches {given!r}")
    for path in matching:
        if os.path.isdir(path):
            yield from ((str(file), path) for file in files_in(Path(path)))
            continue
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise InvalidOption(
                    "files", f"{path!r} is not a regular file", hint="Write its content to a file: it is read twice."
                )
            with open(path, "rb"):
                yield os.path.abspath(path), ""
        except OSError as error:
            raise InvalidOption("files", f"{path!r} cannot be read: {error.strerror}") from error


def _plan(target: Queue, wish: Mapping, batch: str, encoding: str, delimiter: str) -> Plan:
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InvalidOption("delimiter", f"expected one character, got {delimiter!r}")
    try:
        "".encode(encoding or "utf-8")
        codecs.lookup(encoding or "utf-8").decode(b"", "surrogateescape")  # some encodings cannot skip bad bytes
    except (LookupError, UnicodeError):
        raise InvalidOption("encoding", f"Python cannot read text files in the encoding {encoding!r}") from None
    settings = get_settings()
    scope = json.dumps([target.name, batch, wish.identity()])
    return Plan(
        columns=wish.columns(), data=wish.data, needs_key=target.is_ordered,
        scope=blake2b(scope.encode(), digest_size=16).hexdigest(), max_bytes=settings.MAX_DATA_BYTES,
        max_depth=settings.MAX_DEPTH, max_tags=MAX_TAGS, max_tag_length=MAX_TAG_LENGTH, encoding=encoding,
        delimiter=delimiter,
    )  # fmt: skip


def _check_headers(found: list[tuple[SourceFile, str]], plan: Plan) -> None:
    """Raise ``InvalidOption`` for a column that no file has; if some have it, rows of the others are set aside."""
    headers = [header_of(file.path, plan) for file, _ in found]
    names = list(dict.fromkeys(name for header in headers for name in header))
    _check_seen(plan, [name for name in plan.named if not names or name in names], names)


def _check_seen(plan: Plan, seen: list[str], names: list[str]) -> None:
    for option, column in [*plan.columns.items(), *(("data", one) for one in plan.data)]:
        if column not in seen:
            hint = f"The columns are {', '.join(names)}." if names else "Check the first rows of the files."
            if plan.delimiter == "," and any(mark in name for mark in ";\t" for name in names):
                hint += " If another character separates them, give --delimiter."
            raise InvalidOption(option, f"there is no column {column!r}", hint=hint)


# ------------------------------------------------------------------------------------------------------- with Spark


@dataclass(frozen=True, slots=True)
class _Call:
    kind: str
    found: list[tuple[SourceFile, str]]
    queue: str
    wish: Mapping
    plan: Plan
    aside: AsideFile
    again: bool
    dry_run: bool
    tell: Tell
    using: str

    def run(self, spark: SparkSession) -> BulkSent:
        view = view_of(spark)
        with watched(view, "reading", self.tell), _kept(self._judged(view)) as kept:
            judged = _with_all_columns(kept)
            counts = judged.agg(
                F.count(F.lit(1)), F.count("why"), F.bit_or("seen"), F.count("order_text"), F.count("order_real"),
                F.count("order_number"),
            )  # fmt: skip
            ((number, bad, seen, texts, reals, numbers),) = counts.collect()
            if seen is not None:
                _check_seen(self.plan, [name for n, name in enumerate(self.plan.named) if seen >> n & 1], [])
            done = BulkSent(rows=number, bad=bad)
            if bad:
                done.aside = self.aside.write(self._documents(judged.where(F.col("why").isNotNull())))
            if number == bad:
                return done
            good = self._ordered(judged.where(F.col("why").isNull()), texts, reals, numbers)
            self.tell(Progress("counting" if self.dry_run else "sending"))
            done.new, refused, shown = self._stored(good)
            done.known = number - bad - done.new - len(refused)
            if refused:
                done.bad += len(refused)
                done.aside = self.aside.write(self._documents(self._with_refused(judged, refused)))
            if self.dry_run:
                done.first = self._first(good.where(F.col("place").isin(shown))) if shown else []
            else:
                done.sent = done.new
            return done

    def _judged(self, spark: SparkSession) -> DataFrame:
        files = [file for file, _ in self.found]
        if self.kind == "parquet":
            table = rows_of_parquet(spark, files, [base for _, base in self.found], self.plan)
            table = table.select(*columns_of(self.plan))
        else:
            name = f"jobqueue_rows_{uuid4().hex[:8]}"
            body = {"kind": self.kind, "files": files, "plan": self.plan, "name": classmethod(lambda cls: name)}
            spark.dataSource.register(type("BoundSource", (Source,), body))
            table = spark.read.format(name).load()
        return table if self.wish.id is None else _first_of_each_id(table)

    def _with_refused(self, judged: DataFrame, refused: list[int]) -> DataFrame:
        """All rows to set aside: bad rows, and rows that the policy of the queue refused."""
        places = judged.sparkSession.createDataFrame([(place,) for place in refused], "place bigint")
        why = F.lit(f"key: {self.queue!r} holds a job with this key that has not ended")
        content = F.to_json(F.struct("singleton_key", "data"))
        taken = judged.withColumn("place", _place()).join(places, "place").drop("place")
        taken = taken.withColumns({"why": why, "content": content})
        return judged.where(F.col("why").isNotNull()).unionByName(taken)

    def _documents(self, bad: DataFrame) -> Iterator[dict[str, Any]]:
        rows = bad.orderBy("file", "row").select("file", "row", "line", "why", "content")
        for row in rows.toLocalIterator():
            content = None if row["content"] is None else json.loads(row["content"])
            path = self.found[row["file"]][0].path
            yield {"file": path, "row": row["row"], "line": row["line"], "why": row["why"], "content": content}

    def _ordered(self, good: DataFrame, texts: int, reals: int, numbers: int) -> DataFrame:
        """The rows with the columns to sort by: as numbers if all values are numbers, else as texts; then by place."""
        frame = good.withColumn("place", _place())
        if self.wish.order_by is None:
            return frame
        chosen = "order_number" if numbers == texts else "order_real" if reals == texts else "order_text"
        return frame.withColumn("order", F.col(chosen))

    def _stored(self, good: DataFrame) -> tuple[int, list[int], list[int]]:
        """The number of rows that were sent, the rows that the policy of the queue refused, and an empty list.

        A dry run only counts, and the list has the first rows that would be sent.
        """
        write = f"bulk {self.queue} {uuid4().hex}"
        options = {"write_id": write, "mode": self._mode(), **self._keys_of_data()}
        # Only options with a column are staged, because every staged column takes time.
        given = [_STAGED_AS.get(option, option) for option in self.wish.columns()]
        decides = {"id", "singleton_key", "order"}  # whether a row would be sent, and which ones first
        names = [name for name in given if name in decides] if self.dry_run else [*given, "data"]
        chosen = good.select("identity", "place", *names)
        if self.wish.name is not None:
            chosen = chosen.withColumn("name", F.lit(self.wish.name))
        store(chosen, queue=self.queue, options=options, using=self.using)
        record = JobWrite.objects.using(self.using).filter(pk=write)
        stored = record.values_list("jobs", flat=True).first() or 0
        if self.dry_run:
            record.delete()
        left = self._left([refused_write(write), shown_write(write)])
        return stored, left[refused_write(write)], left[shown_write(write)]

    def _left(self, writes: list[str]) -> dict[str, list[int]]:
        """The places of the rows that the commit left staged under each of these names; deletes these rows.

        Usually there are none, and then the table is read only once.
        """
        left: dict[str, list[int]] = {write: [] for write in writes}
        staged = StagedJob.objects.using(self.using).filter(write__in=writes)
        found = list(staged.values_list("write", "place"))
        for write, place in found:
            if place is not None:
                left[write].append(place)
        if found:
            staged.delete()
        return left

    def _mode(self) -> str:
        if self.dry_run:
            return "count_again" if self.again else "count_rows"
        return "store_again" if self.again else "store_rows"

    def _keys_of_data(self) -> dict[str, str]:
        """Which keys of a JSON line become data: PostgreSQL selects them, so that Python does not rewrite the line."""
        if self.kind != "json":
            return {}
        if self.plan.data:
            return {"only": json.dumps(self.plan.data)}
        return {"without": json.dumps(sorted(self.plan.used))} if self.plan.used else {}

    def _first(self, good: DataFrame) -> list[dict[str, Any]]:
        """The first jobs of a dry run, as they would be sent."""
        keys = {name: json.loads(value) for name, value in self._keys_of_data().items()}
        data = data_expression(keys.get("only", []), keys.get("without", [])).replace("%", "%%")
        order = [F.col("order").asc_nulls_last()] if self.wish.order_by else []
        shown = []
        for row in good.orderBy(*order, "place").collect():
            ((stored,),) = rows(self.using, f"SELECT {data} FROM (SELECT %s AS data) s", [row["data"]])
            job = {"name": self.wish.name, "singleton_key": row["singleton_key"], "group_key": row["group_key"],
                   "priority": row["priority"], "tags": row["tags"], "delay": row["delay"],
                   "start_after": row["start_after"], "id": row["id"]}  # fmt: skip
            given = {name: value for name, value in job.items() if value not in (None, [])}
            shown.append({**given, "data": json.loads(stored) if isinstance(stored, str) else stored})
        return shown


@contextmanager
def _kept(table: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows, so that files are read once although the rows are used several times."""
    kept = table.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


def _with_all_columns(kept: DataFrame) -> DataFrame:
    """Add the columns of options that are not mapped. They are empty, so to keep them would cost time and space."""
    missing = {name: F.lit(None).cast(type) for name, type in COLUMNS.items() if name not in kept.columns}
    return kept.withColumns(missing) if missing else kept


def _place() -> Column:
    """The place of a row in the order of the call, from the number of its file and its number in the file."""
    return F.shiftleft(F.col("file").cast("bigint"), _ROWS_OF_A_FILE) + F.col("row")


def _first_of_each_id(table: DataFrame) -> DataFrame:
    """The rows, identified by the ids of the user; a second row with the same id becomes a bad row."""
    same = Window.partitionBy("id").orderBy(F.col("why").isNotNull(), "file", "row")
    ranked = table.withColumn("times", F.row_number().over(same))
    is_second = F.col("id").isNotNull() & F.col("why").isNull() & (F.col("times") > 1)
    changed: dict[str, Column] = {
        "why": F.when(is_second, F.lit("id: another row has it too")).otherwise(F.col("why")),
        "content": F.when(is_second, F.to_json(F.struct("id", "data"))).otherwise(F.col("content")),
        "identity": F.replace(F.col("id"), F.lit("-"), F.lit("")),
    }
    return ranked.withColumns(changed).drop("times")
