"""Jobs from files: CSV, JSON lines and Parquet. Rows that cannot be jobs are set aside, with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from ..conf import get_settings
from ..exceptions import InvalidOption
from ..models import JobWrite, Queue
from ..services.queues import check_exists
from ..services.transactions import database
from .collected import as_dict
from .progress import Tell, tell_nobody, watched
from .session import spark_session
from .writing import write_jobs

FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_BAD, _FILE, _ROW, _WHY, _ID, _DATA = "_bad", "_file", "_row", "_why", "_id", "_data"
_UUID = r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"


@dataclass(frozen=True, slots=True)
class Mapping:
    """Which column of the file is what of a job; what is not named becomes its data."""

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


@dataclass(slots=True)
class BulkSent:
    """What became of the rows; ``bad`` ones are in the file ``aside``, each with the reason."""

    rows: int = 0
    sent: int = 0
    known: int = 0  # sent before, so not again
    bad: int = 0
    aside: str = ""


def bulk_send(
    files: Iterable[str],
    *,
    queue: str,
    mapping: Mapping | None = None,
    format: str | None = None,
    aside: str | Path | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    tell: Tell = tell_nobody,
    using: str | None = None,
) -> BulkSent:
    """Send a job for each good row of these files, all or none, in the order of files and rows.

    Repeating it sends nothing twice: a job's id follows from the name of its file, the number of its row and what is in
    it. Raises ``InvalidOption``, ``QueueNotFound`` and ``SparkUnavailable``; then nothing was sent.
    """
    using = database(using)
    target = check_exists(queue, using)
    paths = list(files)
    kind = format or _format_of(paths)
    wish = mapping or Mapping()
    if target.is_ordered and wish.key is None:
        raise InvalidOption("key", f"{queue!r} is ordered: say which column is the key", hint="--key COLUMN")
    place = Path(aside) if aside is not None else Path(f"{Path(paths[0]).name}.bad.jsonl")
    if spark is None:
        with spark_session(master) as own:
            return _bulk_send(own, paths, kind, target, wish, place, dry_run, tell, using)
    return _bulk_send(spark, paths, kind, target, wish, place, dry_run, tell, using)


def _format_of(paths: list[str]) -> str:
    if not paths:
        raise InvalidOption("files", "expected at least one")
    kinds = {FORMATS.get("".join(Path(path).suffixes[-1:]).lower()) for path in paths}
    if len(kinds) != 1 or None in kinds:
        raise InvalidOption("format", f"cannot tell it from {paths[0]!r}", hint="Give --format csv, json or parquet.")
    return str(kinds.pop())


def _bulk_send(
    spark: SparkSession,
    paths: list[str],
    kind: str,
    target: Queue,
    wish: Mapping,
    aside: Path,
    dry_run: bool,
    tell: Tell,
    using: str,
) -> BulkSent:
    with watched(spark, "reading", tell):
        table = read_files(spark, paths, kind)
        _check_columns(table, wish)
        judged = judge(table, wish, needs_key=target.is_ordered).persist(StorageLevel.MEMORY_AND_DISK)
        counts = judged.agg(F.count(F.lit(1)), F.count(_WHY), F.bit_xor(F.xxhash64(_ID, _DATA))).collect()
    ((number, bad, digest),) = counts
    done = BulkSent(rows=number, bad=bad)
    if bad:
        done.aside = _set_aside(judged, aside)
    if not dry_run:
        with watched(spark, "sending", tell):
            _send(judged, number - bad, f"bulk {target.name} {digest}", target.name, wish, done, using)
    judged.unpersist()
    return done


# ----------------------------------------------------------------------------------------------------------- reading


def read_files(spark: SparkSession, paths: list[str], kind: str) -> DataFrame:
    """The rows with their file and their number in it; a line that is no row has its text in ``_bad``."""
    if kind == "csv":  # texts stay texts: 007 is no number
        reader = spark.read.option("header", True).option("multiLine", False)
        fields = [StructField(name, StringType()) for name in reader.csv(paths).columns]
        schema = StructType([*fields, StructField(_BAD, StringType())])
        rows = reader.schema(schema).option("columnNameOfCorruptRecord", _BAD).csv(paths)
    elif kind == "json":
        inferred = spark.read.option("columnNameOfCorruptRecord", _BAD).json(paths).schema
        fields = [field for field in inferred.fields if field.name != _BAD]
        schema = StructType([*fields, StructField(_BAD, StringType())])
        rows = spark.read.schema(schema).option("columnNameOfCorruptRecord", _BAD).json(paths)
    elif kind == "parquet":
        rows = spark.read.parquet(*paths).withColumn(_BAD, F.lit(None).cast("string"))
    else:
        raise InvalidOption("format", f"expected csv, json or parquet, got {kind!r}")
    placed = rows.withColumn(_FILE, F.input_file_name()).withColumn("_place", F.monotonically_increasing_id())
    in_file = Window.partitionBy(_FILE).orderBy("_place")
    return placed.withColumn(_ROW, F.row_number().over(in_file)).drop("_place")


def _names(table: DataFrame) -> list[str]:
    return [name for name in table.columns if name not in (_BAD, _FILE, _ROW)]


def _check_columns(table: DataFrame, wish: Mapping) -> None:
    names = _names(table)
    for option, column in [*wish.columns().items(), *(("data", one) for one in wish.data)]:
        if column not in names:
            raise InvalidOption(option, f"there is no column {column!r}", hint=f"There are {', '.join(names)}.")


# ----------------------------------------------------------------------------------------------------------- judging


def judge(table: DataFrame, wish: Mapping, *, needs_key: bool) -> DataFrame:
    """Each row with its data, its id, and why it cannot be a job, if it cannot."""
    used = set(wish.columns().values()) - {wish.order_by}
    chosen = list(wish.data) or [name for name in _names(table) if name not in used]
    whole = F.struct(*(F.col(f"`{name}`") for name in chosen)) if chosen else None
    data = F.lit(None).cast("string") if whole is None else F.to_json(whole, {"ignoreNullFields": "false"})
    with_data = table.withColumn(_DATA, data)
    given = _col(wish.id) if wish.id else None
    identified = with_data.withColumn(_ID, _made_id() if given is None else F.lower(given.cast("string")))
    return identified.withColumn(_WHY, F.coalesce(*_problems(wish, needs_key)))


def _col(name: str) -> Column:
    return F.col(f"`{name}`")


def _made_id() -> Column:
    """The file by its name alone, so that it may be moved; the content, so that a new file of that name is new."""
    name = F.substring_index(_FILE, "/", -1)
    digest = F.md5(F.concat_ws("\n", name, F.col(_ROW).cast("string"), F.coalesce(F.col(_DATA), F.lit(""))))
    pieces = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    return F.concat_ws("-", *(F.substring(digest, start, length) for start, length in pieces))


def _problems(wish: Mapping, needs_key: bool) -> list[Column]:
    """The first one counts."""
    found = [F.when(F.col(_BAD).isNotNull(), F.lit("this line cannot be read as a row"))]
    for option, column in (("key", wish.key), ("group_key", wish.group_key)):
        if column is not None:
            text = _col(column).cast("string")
            found.append(F.when(F.length(text) > 255, F.lit(f"{option}: longer than 255 characters")))
    if needs_key and wish.key is not None:
        found.append(F.when(F.coalesce(_col(wish.key).cast("string"), F.lit("")) == "", F.lit("key: empty")))
    for option, column, kind in (
        ("priority", wish.priority, "int"),
        ("delay", wish.delay, "double"),
        ("start_after", wish.start_after, "timestamp"),
    ):
        if column is not None:
            wrong = _col(column).isNotNull() & _col(column).cast("string").try_cast(kind).isNull()
            found.append(F.when(wrong, F.concat(F.lit(f"{option}: not {kind}: "), _col(column).cast("string"))))
    if wish.id is not None:
        given = F.coalesce(_col(wish.id).cast("string"), F.lit(""))
        found.append(F.when(~given.rlike(_UUID), F.concat(F.lit("id: not a UUID: "), given)))
    most = get_settings().MAX_DATA_BYTES
    found.append(F.when(F.octet_length(_DATA) > most, F.lit(f"data: larger than {most} bytes")))
    found.append(F.when(F.col(_DATA).contains("\\u0000"), F.lit("data: holds NUL, which PostgreSQL cannot store")))
    return found


def _set_aside(judged: DataFrame, aside: Path) -> str:
    """One JSON document a line: where it was, why, and what was there."""
    bad = judged.where(F.col(_WHY).isNotNull()).orderBy(_FILE, _ROW)
    aside.parent.mkdir(parents=True, exist_ok=True)
    with aside.open("w", encoding="utf-8") as out:
        for row in map(as_dict, bad.toLocalIterator()):
            content = row[_BAD] if row[_BAD] is not None else {n: v for n, v in row.items() if not n.startswith("_")}
            line = {"file": row[_FILE], "row": row[_ROW], "why": row[_WHY], "content": content}
            out.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    return str(aside)


# ----------------------------------------------------------------------------------------------------------- sending


def _send(judged: DataFrame, good: int, write: str, queue: str, wish: Mapping, done: BulkSent, using: str) -> None:
    """The very same files sent again are known by the name of the write; single rows by their ids."""
    if JobWrite.objects.using(using).filter(pk=write).exists():
        done.known = good
        return
    rows = judged.where(F.col(_WHY).isNull())
    if wish.tags is not None and rows.schema[wish.tags].dataType == StringType():
        rows = rows.withColumn(wish.tags, F.split(_col(wish.tags), r"\s*,\s*"))
    order = [wish.order_by] if wish.order_by else [_FILE, _ROW]
    numbered = rows.withColumn("_order", F.row_number().over(Window.orderBy(*order)).cast("bigint"))
    write_jobs(
        numbered, queue=queue, key=wish.key, order_by="_order", data=_DATA, id=_ID, name=wish.name,
        group_key=wish.group_key, priority=wish.priority, tags=wish.tags, delay=wish.delay,
        start_after=wish.start_after, write_id=write, using=using,
    )  # fmt: skip
    sent = JobWrite.objects.using(using).filter(pk=write).values_list("jobs", flat=True).first() or 0
    done.sent, done.known = sent, good - sent
