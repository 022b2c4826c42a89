"""The archive: writes finished jobs to the lake, reads them back, and only then deletes them from PostgreSQL.

If it is killed, each job is in PostgreSQL, in a verified run, or in both, and the next archive continues. A row is
deleted only if a verified run holds its id with the time at which it ended, so a job that was not read or has changed
since stays. A run is synced to disk before it is verified, so that a power loss cannot destroy the only copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import psycopg
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from .. import handlers, services
from ..conf import get_settings
from ..engine.databases import database, rows
from ..exceptions import InvalidOption, LakeProblem
from ..models import Job, Maintenance
from ..options import YEAR, check_seconds
from ..redaction import HIDDEN, StoredText
from ..services.inspect.archive import archivable_condition, count_archivable
from ..services.queues import find_queue
from ..statistics import CATCH_UP
from .datasource import COLUMNS
from .failures import explained
from .lake import DONE, JOB_SCHEMA, PARTITIONED_BY, VERIFIED, Lake, Proof, Started, jobs_in, proof
from .location import check_folder, lake_path
from .progress import Progress, Tell, tell_nobody, watched
from .reading import kept_open, load
from .session import given_or_started

OLDER_THAN = timedelta(days=7)
AT_ONCE = 1_000
CAN_BE_LEFT_OUT = ("data", "output", "error", "attempts", "note", "carried")
REST = 3.0  # seconds for each second of reading and writing, because an archive is not urgent
ARCHIVABLE = archivable_condition()
_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('jobqueue archive', 0))"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Archived:
    """What an archive did; ``kept`` jobs are in the lake and in PostgreSQL, because they changed or were in use."""

    run: str = ""
    cutoff: datetime | None = None
    written: int = 0
    deleted: int = 0
    kept: int = 0
    removed_runs: list[str] = field(default_factory=list)  # that were not verified
    resumed_runs: list[str] = field(default_factory=list)  # that were verified, but their jobs not all deleted
    busy: bool = False  # another archive of this database was running, so nothing was done
    lake_runs: int = 0  # verified runs in the lake after this archive
    lake_jobs: int = 0  # records in all of these runs


def archive_jobs(
    *,
    lake: str | None = None,
    older_than: float | timedelta = OLDER_THAN,
    queue: str | Iterable[str] = (),
    without: Iterable[str] = (),
    redact: bool = True,
    rest: float = REST,
    spark: SparkSession | None = None,
    master: str | None = None,
    tell: Tell = tell_nobody,
    using: str | None = None,
) -> Archived:
    """Write finished jobs that ended longer ago than ``older_than`` to the lake, verify them, and delete them.

    Jobs that block a key are not archived. ``without`` leaves columns out of the lake: ``data``, ``output``, ``error``,
    ``attempts``, ``note``, ``carried``. Values of ``JOBQUEUE["REDACT"]`` are hidden in the lake, unless ``redact`` is
    false; a job with hidden values in its data cannot be restored. The archive pauses ``rest`` seconds for each second
    of reading and writing, to leave the machine to other processes. If another archive of this database is running, it
    does nothing. A lake that does not exist is created, in a folder that exists. Raises ``InvalidOption``,
    ``QueueNotFound``, ``SparkUnavailable`` and ``LakeProblem``; no job is lost by an error.
    """
    using = database(using)
    request = _ArchiveRequest(
        seconds=check_seconds(older_than, option="older_than", minimum=0, maximum=100 * YEAR),
        queues=[find_queue(name, using).name for name in ([queue] if isinstance(queue, str) else queue)],
        without=check_without(without),
        hidden=_stored_text() if redact else None,
        rest=check_seconds(rest, option="rest", minimum=0, maximum=1_000),
        using=using,
        database=identity(using),  # before Spark starts, so that a database that is down raises at once
    )
    path = lake_path(lake)
    check_folder(path, to_write=True)
    with explained(f"the lake {path}"), given_or_started(spark, master) as session:
        return _archive(Lake(session, path), request, tell)


def archivable(using: str, older_than: float | timedelta, queues: Iterable[str] = ()) -> tuple[datetime, int]:
    """The cut-off that an archive would use now, and how many jobs it would archive."""
    cutoff = _cutoff(using, check_seconds(older_than, option="older_than", minimum=0, maximum=100 * YEAR))
    names = [find_queue(name, using).name for name in queues]
    return cutoff, count_archivable(cutoff, names, using=using)


@dataclass(frozen=True, slots=True)
class _ArchiveRequest:
    seconds: float
    queues: list[str]
    without: list[str]
    hidden: StoredText | None
    rest: float
    using: str
    database: str


def _stored_text() -> StoredText:
    """What hides secrets, with the names of the positional arguments of all tasks."""
    handlers.discovered()
    known = [handler for handler in handlers.all_handlers() if handler.positional]
    names = {name: tuple(handler.positional) for handler in known for name in (handler.name, *handler.aliases)}
    return StoredText(get_settings().REDACT, names)


def check_without(names: Iterable[str]) -> list[str]:
    columns = list(dict.fromkeys(names))
    for name in columns:
        if name not in CAN_BE_LEFT_OUT:
            raise InvalidOption(
                "without", f"{name!r} cannot be left out", hint=f"These can: {', '.join(CAN_BE_LEFT_OUT)}."
            )
    return columns


def _archive(lake: Lake, request: _ArchiveRequest, tell: Tell) -> Archived:
    result = Archived()
    with _archive_lock(request.using) as lock:
        if lock is None:
            result.busy = True
            return result
        lake.create()
        _finish_earlier_runs(lake, request, lock, tell, result)
        result.cutoff = _cutoff(request.using, request.seconds)
        started = lake.begin(request.database, result.cutoff, request.queues, request.without)
        written = _write(lake, started, request, tell)
        tell(Progress("written"))
        if written.rows:
            lake.sync(started.run)
            _verify(lake, started.run, written, tell)
            lake.mark(started.run, VERIFIED, asdict(started) | asdict(written))
            tell(Progress("verified"))
            result.run, result.written = started.run, written.rows
            _delete(lake, started.run, written.rows, request.using, lock, tell, result)
        else:
            lake.remove(started.run)
        verified = lake.verified()
        result.lake_runs, result.lake_jobs = len(verified), jobs_in(verified)
    return result


# ----------------------------------------------------------------------------------------------------- one at a time


class _ArchiveLock:
    """The lock of this archive, checked before deletes: if its connection is lost, another archive can get the lock."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def check(self) -> None:
        try:
            self.connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise LakeProblem(
                "The connection that holds the lock of the archive was lost; nothing more was deleted.",
                hint="Run the archive again: it continues where this one stopped.",
            ) from error


@contextmanager
def _archive_lock(using: str) -> Iterator[_ArchiveLock | None]:
    """Lock out other archives of this database with a transaction that stays open; ``None`` if another one runs.

    Unlike a session lock, it also works behind a pooler. The idle transaction has no snapshot, so it does not keep
    dead rows from being vacuumed.
    """
    with kept_open(using, psycopg.IsolationLevel.READ_COMMITTED) as connection:
        row = connection.execute(_LOCK).fetchone()
        yield _ArchiveLock(connection) if row and row[0] else None


def identity(using: str) -> str:
    """Which database this is, so that an archive does not touch unfinished runs of another database."""
    sql = "SELECT system_identifier::text || '/' || current_database() FROM pg_control_system()"
    return str(rows(using, sql)[0][0])


# --------------------------------------------------------------------------------------------------- which jobs are old


def _cutoff(using: str, seconds: float) -> datetime:
    """The cut-off by the database's clock; it leaves out jobs not yet counted by statistics that are up to date."""
    sql = "SELECT statement_timestamp(), statement_timestamp() - %s * interval '1 second'"
    now: datetime
    cutoff: datetime
    ((now, cutoff),) = rows(using, sql, [seconds])
    counted = Maintenance.objects.using(using).values_list("counted_until", flat=True).first()
    return min(cutoff, counted) if counted is not None and counted > now - CATCH_UP else cutoff


def _finished(spark: SparkSession, started: Started, request: _ArchiveRequest) -> DataFrame:
    options = {
        "columns": json.dumps(list(COLUMNS)),
        "queue": json.dumps(started.queues) if started.queues else "",
        "finalized_before": started.cutoff,
    }
    jobs = load(spark, options, using=request.using, condition=ARCHIVABLE, hidden=request.hidden, rest=request.rest)
    for name in [*started.without, *(["error_summary"] if "error" in started.without else [])]:
        jobs = jobs.withColumn(name, F.lit(None).cast(StringType()))
    left_out = F.array(*map(F.lit, started.without)).cast(ArrayType(StringType()))
    if request.hidden is not None:
        left_out = F.when(F.col("data").contains(HIDDEN), F.array_union(left_out, F.array(F.lit("data")))).otherwise(
            left_out
        )
    return jobs.withColumn("without", left_out).select(*JOB_SCHEMA.fieldNames())


# ----------------------------------------------------------------------------------------- write, read back, delete


def _write(lake: Lake, started: Started, request: _ArchiveRequest, tell: Tell) -> Proof:
    observation = Observation()
    jobs = _finished(lake.spark, started, request).observe(observation, *proof())
    with watched(lake.spark, "writing", tell):
        jobs.write.mode("append").partitionBy(*PARTITIONED_BY).parquet(lake.folder(started.run))
    return Proof(**observation.get)


def _verify(lake: Lake, run: str, written: Proof, tell: Tell) -> None:
    """Read every column of every row back from the lake and compare; raises ``LakeProblem``."""
    with watched(lake.spark, "verifying", tell):
        (row,) = lake.read_run(run).agg(*proof(), F.count_distinct("id").alias("ids")).collect()
    read = Proof(row["rows"], row["digest"])
    if read != written or row["ids"] != written.rows:
        raise LakeProblem(
            f"Run {run} differs from what was written: {written.rows} jobs (digest {written.digest}) were written, "
            f"{read.rows} jobs (digest {read.digest}) with {row['ids']} ids were read back.",
            hint="Nothing of this run was deleted. Check the disk, then run the archive again.",
        )


def _delete(lake: Lake, run: str, expected: int, using: str, lock: _ArchiveLock, tell: Tell, result: Archived) -> None:
    read = deleted = kept = 0
    for queue, batch in _in_batches(lake.read_run(run)):
        lock.check()
        number = services.delete_archived(queue, batch, using=using)
        deleted += number
        if number < len(batch):  # the others changed, are in use, or were deleted by an archive that was killed
            kept += Job.objects.using(using).filter(queue_id=queue, pk__in=[id for id, _ in batch]).count()
        read += len(batch)
        tell(Progress("deleting", read, expected, "jobs"))
    if read != expected:
        raise LakeProblem(f"Run {run} held {expected} jobs when it was verified, and holds {read} now.")
    lake.mark(run, DONE, {"run": run, "deleted": deleted, "kept": kept})
    result.deleted += deleted
    result.kept += kept


def _in_batches(jobs: DataFrame) -> Iterator[tuple[str, list[tuple[str, datetime]]]]:
    """Batches of ids of one queue, each id with the time at which the job ended."""
    chosen = jobs.select("queue", "id", F.unix_micros("finalized_at").alias("ended"))
    rows = chosen.toLocalIterator(prefetchPartitions=True)
    batches: dict[str, list[tuple[str, datetime]]] = {}
    while chunk := list(islice(rows, 10 * AT_ONCE)):
        for queue, id, ended in chunk:
            batch = batches.setdefault(queue, [])
            batch.append((id, _EPOCH + timedelta(microseconds=ended)))
            if len(batch) == AT_ONCE:
                yield queue, batches.pop(queue)
    yield from batches.items()


def _finish_earlier_runs(
    lake: Lake, request: _ArchiveRequest, lock: _ArchiveLock, tell: Tell, result: Archived
) -> None:
    """Remove the unverified runs of this database, and delete the jobs of verified runs that are not done."""
    for run in lake.runs():
        if lake.has(run, DONE):
            continue
        if lake.has(run, VERIFIED):
            document = lake.marked(run, VERIFIED)
            if document["database"] == request.database:
                _resume(lake, run, Proof(document["rows"], document["digest"]), request, lock, tell, result)
        elif (started := lake.started(run)) is None or started.database == request.database:
            lock.check()
            lake.remove(run)
            result.removed_runs.append(run)


def _resume(
    lake: Lake, run: str, written: Proof, request: _ArchiveRequest, lock: _ArchiveLock, tell: Tell, result: Archived
) -> None:
    """Delete the jobs of a run that another process verified, after the run was synced and verified again.

    An older version did not sync the files, and the power may have failed since.
    """
    lake.sync(run)
    _verify(lake, run, written, tell)
    _delete(lake, run, written.rows, request.using, lock, tell, result)
    result.resumed_runs.append(run)
