"""The lake: its folders and files, which runs are verified, and how they are read.

The files are ``LAKE/run=ID/day=…/queue=…/*.parquet``. Each run has marks, small JSON documents: ``_STARTED`` when it
begins, ``_VERIFIED`` when its rows were read back and compared, ``_DONE`` when its jobs were deleted from PostgreSQL.
Spark's readers skip names that begin with an underscore.

On a local file system, ``mark()`` returns when the mark is synced to disk, and ``sync()`` when the run is. On HDFS,
marks are synced by its own call; object stores need no sync.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
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

from ..exceptions import LakeProblem
from .datasource import COLUMNS
from .failures import explained
from .location import is_lake, lake_path, missing_lake, missing_parent, other_folder
from .syncing import sync, sync_tree

_TYPES: dict[str, DataType] = {  # Spark can parse their names too, but only if a session exists
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
}

# The contract of the lake. Columns may be added: they are null in rows of older runs. Every other change needs a new
# version, a function in UPGRADES that turns old rows into new ones, and an entry in the changelog.
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
WITH_FOLDERS = frozenset({"file", "hdfs", "viewfs", "webhdfs", "swebhdfs"})  # others, such as S3, have no folders
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Started:
    """What a run will archive: the content of its mark ``_STARTED``."""

    run: str
    database: str
    cutoff: str
    queues: list[str]
    without: list[str]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Proof:
    """The number of rows and a digest of all their columns: equal proofs mean equal rows, in any order."""

    rows: int
    digest: int


class Lake:
    """A folder of archive runs, on any file system that Spark can write to."""

    def __init__(self, spark: SparkSession, path: str | None = None) -> None:
        self.spark = spark
        self.path = lake_path(path)
        jvm: Any = spark._jvm
        if jvm is None:
            raise LakeProblem("The lake cannot be used with Spark Connect.", hint="Use a classic Spark session.")
        self._jvm = jvm
        self.hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self.fs: Any = self.at("").getFileSystem(self.hadoop)
        self.scheme = str(self.fs.getUri().getScheme())
        self.root = self.fs.makeQualified(self.at(""))
        self.here = Path(str(self.root.toUri().getPath())) if self.scheme == "file" else None

    # ---------------------------------------------------------------------------------------------------- the lake

    def exists(self) -> bool:
        return bool(self.fs.exists(self.root) and self.fs.getFileStatus(self.root).isDirectory())

    def create(self) -> None:
        """Create the lake if it does not exist, but not its parent folder: a missing parent may be a mistyped path."""
        if self.exists():
            return
        if self.scheme in WITH_FOLDERS and not self.fs.exists(self.root.getParent()):
            raise missing_parent(self.path)
        if not self.fs.mkdirs(self.root):
            raise LakeProblem(f"The lake {self.path} could not be created.", hint="Allow this user to create it.")

    # ------------------------------------------------------------------------------------------------------- runs

    def runs(self) -> list[str]:
        """All runs, also unverified ones, the oldest first. Raises ``LakeProblem`` if there is no lake."""
        names = [name for name, is_folder in self._names().items() if is_folder]
        return sorted(name.removeprefix("run=") for name in names if name.startswith("run="))

    def check(self) -> Lake:
        """Raise ``LakeProblem`` if there is no lake, or if the folder holds other files."""
        if not is_lake(self._names()):
            raise other_folder(self.path)
        return self

    def _names(self) -> dict[str, bool]:
        """The names in the lake, and whether each is a folder."""
        if not self.exists():
            raise missing_lake(self.path)
        return {status.getPath().getName(): status.isDirectory() for status in self.fs.listStatus(self.at(""))}

    def verified(self) -> dict[str, Document]:
        """The verified runs, each with the document of its mark."""
        return {run: self.marked(run, VERIFIED) for run in self.runs() if self.has(run, VERIFIED)}

    def sync(self, run: str) -> None:
        """Sync every file and folder of a run to disk, on a local file system. Raises ``LakeProblem``."""
        if self.here is None:
            return
        try:
            sync_tree(self.here / f"run={run}")
        except OSError as error:
            raise _not_synced(error, "Nothing of this run was deleted from PostgreSQL.") from error

    def begin(self, database: str, cutoff: datetime, queues: list[str], without: list[str]) -> Started:
        """Begin a run; its name is the time and a random suffix."""
        run = f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}-{uuid4().hex[:8]}"
        started = Started(run, database, cutoff.isoformat(), queues, without)
        self.mark(run, STARTED, asdict(started))
        return started

    def started(self, run: str) -> Started | None:
        """What a run will archive; ``None`` if it was killed before it wrote its first mark."""
        return Started(**self.marked(run, STARTED)) if self.has(run, STARTED) else None

    def folder(self, run: str) -> str:
        return f"{self.path}/run={run}"

    def remove(self, run: str) -> None:
        self.fs.delete(self.at(f"run={run}"), True)

    # ------------------------------------------------------------------------------------------------------ marks

    def has(self, run: str, mark: str) -> bool:
        return bool(self.fs.exists(self.at(f"run={run}/{mark}")))

    def mark(self, run: str, mark: str, document: Document) -> None:
        """Write a mark, complete and synced, or not at all: it is written as a draft, synced and renamed."""
        self.write(f"run={run}/_draft{mark}", json.dumps(document, indent=2).encode())
        self._sync_file(f"run={run}/_draft{mark}", mark)
        if not self.fs.rename(self.at(f"run={run}/_draft{mark}"), self.at(f"run={run}/{mark}")):
            raise LakeProblem(f"{self.folder(run)}/{mark} could not be written.")
        self._sync_file(f"run={run}/{mark}", mark)

    def marked(self, run: str, mark: str) -> Document:
        try:
            document: Document = json.loads(self.text(f"run={run}/{mark}"))
        except ValueError as error:
            raise LakeProblem(
                f"{self.folder(run)}/{mark} is damaged: it is not JSON.",
                hint="Check the disk. A damaged run can be moved out of the lake.",
            ) from error
        return document

    # ------------------------------------------------------------------------------------------------------- files

    def write(self, place: str, content: bytes) -> None:
        stream = self.fs.create(self.at(place), True)
        try:
            stream.write(bytearray(content))
            if stream.hasCapability(
                "hsync"
            ):  # on HDFS; local files are synced by _sync_file(), object stores need no sync
                stream.hsync()
        finally:
            stream.close()

    def text(self, place: str) -> str:
        stream = self.fs.open(self.at(place))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _sync_file(self, place: str, mark: str) -> None:
        """Sync a file, the checksum that Hadoop writes beside it, and the folder that holds their names."""
        if self.here is None:
            return
        path = self.here / place
        checksum = path.with_name(f".{path.name}.crc")
        try:
            for target in (path, *([checksum] if checksum.exists() else []), path.parent):
                sync(target)
        except OSError as error:
            consequence = "Its jobs are deleted, and safe" if mark == DONE else "Nothing of this run was deleted"
            raise _not_synced(error, f"{consequence}.") from error

    def at(self, place: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{place}" if place else self.path)

    # ---------------------------------------------------------------------------------------------------- reading

    def read_run(self, run: str) -> DataFrame:
        """The rows of one run, as they were written."""
        return self._rows([run]).select(*JOB_SCHEMA.fieldNames())

    def read(self, verified: Mapping[str, Document] | None = None) -> DataFrame:
        """Every job of the lake once: of each id the newest record in the verified runs, with its ``run``."""
        versions: dict[int, list[str]] = defaultdict(list)
        for run, document in (self.verified() if verified is None else verified).items():
            versions[_version(run, document)].append(run)
        parts = [_upgraded(self._rows(runs), version) for version, runs in sorted(versions.items())]
        if not parts:
            return self.spark.createDataFrame([], _WITH_RUN)
        return newest_by_id(reduce(DataFrame.unionByName, parts))

    def _rows(self, runs: list[str]) -> DataFrame:
        """Read with a fixed schema: a queue named 007 stays text, and a column that an old run lacks is null."""
        reader = self.spark.read.schema(_WITH_RUN).option("basePath", self.path)
        return reader.parquet(*map(self.folder, runs)).select(*_WITH_RUN.fieldNames())

    def queues(self, verified: Iterable[str]) -> set[str]:
        """The names of the queues whose jobs these runs hold."""
        runs = list(verified)
        return {row.queue for row in self._rows(runs).select("queue").distinct().collect()} if runs else set()


_WITH_RUN = StructType([*JOB_SCHEMA.fields, StructField("run", StringType())])


def _version(run: str, document: Document) -> int:
    version = int(document["schema_version"])
    if version > SCHEMA_VERSION:
        raise LakeProblem(
            f"Run {run} was written by a newer django-jobqueue (schema {version}; this one reads {SCHEMA_VERSION}).",
            hint="Upgrade django-jobqueue before you read this lake.",
        )
    return version


def jobs_in(verified: Mapping[str, Document]) -> int:
    """How many records these runs hold; a job that was archived twice counts twice."""
    return sum(int(document.get("rows", 0)) for document in verified.values())


def _upgraded(rows: DataFrame, version: int) -> DataFrame:
    for old in range(version, SCHEMA_VERSION):
        rows = UPGRADES[old](rows)
    return rows


def read_lake(spark: SparkSession, path: str | None = None) -> DataFrame:
    """Every archived job once, from the verified runs; the schema is ``JOB_SCHEMA`` and the column ``run``.

    ``path`` is a folder or a URL that Spark can read, by default ``JOBQUEUE["LAKE"]``. Raises ``LakeProblem`` if there
    is no lake, or if a run was written by a newer version.
    """
    with explained(f"the lake {lake_path(path)}"):
        return Lake(spark, path).check().read()


def newest_by_id(jobs: DataFrame) -> DataFrame:
    """Of each job the record with the latest end; a job is in two runs if an operator retried it between them."""
    newest = Window.partitionBy("id").orderBy(F.col("finalized_at").desc(), F.col("run").desc())
    ranked = jobs.withColumn("rank", F.row_number().over(newest))
    return ranked.where(F.col("rank") == 1).drop("rank")


def proof() -> list[Column]:
    """The columns of a :class:`Proof`: observed while rows are written, and computed again from the files."""
    digest = F.bit_xor(F.xxhash64(*JOB_SCHEMA.fieldNames()))
    return [F.count(F.lit(1)).alias("rows"), F.coalesce(digest, F.lit(0)).alias("digest")]


def _not_synced(error: OSError, consequence: str) -> LakeProblem:
    return LakeProblem(
        f"{error.filename} could not be synced to disk: {error.strerror}.",
        hint=f"{consequence} Check the disk, then run the archive again: it continues where this one stopped.",
    )
