"""The lake: what lies where, which runs can be trusted, and how they are read.

``LAKE/run=ID/day=…/queue=…/*.parquet``. A run is begun with ``_STARTED``, can be trusted with ``_VERIFIED`` and is over
with ``_DONE``; each is a small JSON document. Spark's readers pass over names that begin with an underscore.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..conf import get_settings
from ..exceptions import InvalidOption, LakeProblem
from .datasource import COLUMNS

_TYPES: dict[str, DataType] = {  # Spark could parse their names itself, but only once a session is there
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
}

# The contract of the lake. Columns may be added: older runs are read with nulls in them. Whatever else changes needs a
# new version, a function in UPGRADES that makes the old rows look like new ones, and an entry in the changelog.
SCHEMA_VERSION = 1
JOB_SCHEMA = StructType(
    [
        *(StructField(name, _TYPES[column.type]) for name, column in COLUMNS.items()),
        StructField("without", ArrayType(StringType())),  # the columns that the archive was told to leave out
    ]
)
UPGRADES: dict[int, Any] = {}  # version → DataFrame of that version → DataFrame of the next
PARTITIONED_BY = ("day", "queue")

STARTED, VERIFIED, DONE = "_STARTED", "_VERIFIED", "_DONE"


@dataclass(frozen=True, slots=True)
class Started:
    """What a run set out to do."""

    run: str
    database: str
    cutoff: str
    queues: list[str]
    without: list[str]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Proof:
    """How many rows, and a digest of all their columns: equal proofs mean equal rows, whatever their order."""

    rows: int
    digest: int


class Lake:
    """A folder of archive runs, on whatever file system Spark can write to."""

    def __init__(self, spark: SparkSession, path: str | None = None) -> None:
        self.spark = spark
        self.path = lake_path(path)
        jvm: Any = spark._jvm
        if jvm is None:
            raise LakeProblem("The lake cannot be reached by Spark Connect.", hint="Use a classic Spark session.")
        self._jvm = jvm
        self._fs = self._at("").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    # ------------------------------------------------------------------------------------------------------- runs

    def runs(self) -> list[str]:
        """Every run, also those that are not verified, oldest first."""
        if not self._fs.exists(self._at("")):
            return []
        names = [status.getPath().getName() for status in self._fs.listStatus(self._at("")) if status.isDirectory()]
        return sorted(name.removeprefix("run=") for name in names if name.startswith("run="))

    def verified(self) -> list[str]:
        return [run for run in self.runs() if self.has(run, VERIFIED)]

    def begin(self, database: str, cutoff: datetime, queues: list[str], without: list[str]) -> Started:
        """A new run; its name says when it began, and no two are alike."""
        run = f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}-{uuid4().hex[:8]}"
        started = Started(run, database, cutoff.isoformat(), queues, without)
        self.mark(run, STARTED, asdict(started))
        return started

    def started(self, run: str) -> Started | None:
        """What a run set out to do, if it came so far as to say so."""
        return Started(**self.marked(run, STARTED)) if self.has(run, STARTED) else None

    def folder(self, run: str) -> str:
        return f"{self.path}/run={run}"

    def remove(self, run: str) -> None:
        self._fs.delete(self._at(f"run={run}"), True)

    # ------------------------------------------------------------------------------------------------------ marks

    def has(self, run: str, mark: str) -> bool:
        return bool(self._fs.exists(self._at(f"run={run}/{mark}")))

    def mark(self, run: str, mark: str, document: dict[str, Any]) -> None:
        """Whole or not at all: it is written under another name first."""
        draft, final = self._at(f"run={run}/_draft{mark}"), self._at(f"run={run}/{mark}")
        stream = self._fs.create(draft, True)
        try:
            stream.write(bytearray(json.dumps(document, indent=2).encode()))
        finally:
            stream.close()
        if not self._fs.rename(draft, final):
            raise LakeProblem(f"{self.folder(run)}/{mark} could not be written.")

    def marked(self, run: str, mark: str) -> dict[str, Any]:
        stream = self._fs.open(self._at(f"run={run}/{mark}"))
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        document: dict[str, Any] = json.loads(text)
        return document

    def _at(self, place: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{place}" if place else self.path)

    # ---------------------------------------------------------------------------------------------------- reading

    def read_run(self, run: str) -> DataFrame:
        """The rows of one run, as they were written."""
        return self._rows([run]).select(*JOB_SCHEMA.fieldNames())

    def read(self) -> DataFrame:
        """Every job of the lake once: the verified runs, and of each id the newest record, with its ``run``."""
        versions: dict[int, list[str]] = defaultdict(list)
        for run in self.verified():
            versions[self._version(run)].append(run)
        found = [_upgraded(self._rows(runs), version) for version, runs in sorted(versions.items())]
        if not found:
            return self.spark.createDataFrame([], _WITH_RUN)
        return newest_by_id(reduce(DataFrame.unionByName, found))

    def _rows(self, runs: list[str]) -> DataFrame:
        """The schema is given, not guessed: a queue named 007 is a text, and a column that an old run lacks is null."""
        reader = self.spark.read.schema(_WITH_RUN).option("basePath", self.path)
        return reader.parquet(*map(self.folder, runs)).select(*_WITH_RUN.fieldNames())

    def _version(self, run: str) -> int:
        version = int(self.marked(run, VERIFIED)["schema_version"])
        if version > SCHEMA_VERSION:
            raise LakeProblem(
                f"Run {run} was written by a newer django-jobqueue (schema {version}, this knows {SCHEMA_VERSION}).",
                hint="Upgrade django-jobqueue before you read this lake.",
            )
        return version


_WITH_RUN = StructType([*JOB_SCHEMA.fields, StructField("run", StringType())])


def _upgraded(rows: DataFrame, version: int) -> DataFrame:
    for old in range(version, SCHEMA_VERSION):
        rows = UPGRADES[old](rows)
    return rows


def lake_path(given: str | None) -> str:
    path = given or get_settings().LAKE
    if not path:
        raise InvalidOption("lake", "nobody has said where it lies", hint="Give --lake, or set JOBQUEUE['LAKE'].")
    return path.rstrip("/") or "/"


def read_lake(spark: SparkSession, path: str | None = None) -> DataFrame:
    """Every archived job once, from the runs that were verified; the schema is ``JOB_SCHEMA`` and the ``run``.

    ``path`` is a folder or a URL that Spark can read, by default ``JOBQUEUE["LAKE"]``. Raises ``LakeProblem`` for runs
    of a newer version.
    """
    return Lake(spark, path).read()


def newest_by_id(jobs: DataFrame) -> DataFrame:
    """Of each job the record that ended last; a job is in two runs if it was retried between them."""
    newest = Window.partitionBy("id").orderBy(F.col("finalized_at").desc(), F.col("run").desc())
    ranked = jobs.withColumn("rank", F.row_number().over(newest))
    return ranked.where(F.col("rank") == 1).drop("rank")


def proof() -> list[Column]:
    """What makes a :class:`Proof`: observed while rows are written, and computed again from what was written."""
    digest = F.bit_xor(F.xxhash64(*JOB_SCHEMA.fieldNames()))
    return [F.count(F.lit(1)).alias("rows"), F.coalesce(digest, F.lit(0)).alias("digest")]
