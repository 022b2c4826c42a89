"""The archive: finished jobs into the lake, read back, and only then deleted from PostgreSQL.

Wherever it is killed, each job is in PostgreSQL or in a verified run, or in both, and the next archive goes on. Rows
are deleted by what a verified run holds, one by one with the time at which each ended, so nothing that was missed or
has changed is lost. A run is on disk before it is verified, so that a power loss cannot take what is deleted.
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

from .. import services
from ..engine.databases import database, rows
from ..exceptions import InvalidOption, LakeProblem
from ..models import Job, Maintenance
from ..options import YEAR, check_seconds
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
REST = 3.0  # seconds for each second of reading and writing: the past can wait
ARCHIVABLE = archivable_condition()
_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('jobqueue archive', 0))"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Archived:
    """What an archive did: ``kept`` jobs are in the lake and also in PostgreSQL still: they changed, or were in use."""

    run: str = ""
    cutoff: datetime | None = None
    written: int = 0
    deleted: int = 0
    kept: int = 0
    removed_runs: list[str] = field(default_factory=list)  # they were not verified
    resumed_runs: list[str] = field(default_factory=list)  # they were, but not done
    busy: bool = False  # another archive of this database was running, so nothing was done
    lake_runs: int = 0  # that the lake now holds and that are verified
    lake_jobs: int = 0  # in all of them


def archive_jobs(
    *,
    lake: str | None = None,
    older_than: float | timedelta = OLDER_THAN,
    queue: str | Iterable[str] = (),
    without: Iterable[str] = (),
    rest: float = REST,
    spark: SparkSession | None = None,
    master: str | None = None,
    tell: Tell = tell_nobody,
    using: str | None = None,
) -> Archived:
    """Write finished jobs that ended longer ago than ``older_than`` to the lake, verify them, delete them.

    Never one that blocks a key. ``without`` leaves columns out of the lake: ``data``, ``output``, ``error``,
    ``attempts``, ``note``, ``carried``. For each second of reading and writing it rests ``rest`` seconds, to leave the
    machine to others. If another archive of this database is running, nothing is done. A lake that is missing is
    created, in a folder that exists. Raises ``InvalidOption``, ``QueueNotFound``, ``SparkUnavailable`` and
    ``LakeProblem``; whatever it raises, nothing is lost.
    """
    using = database(using)
    wish = _Wish(
        seconds=check_seconds(older_than, option="older_than", minimum=0, maximum=100 * YEAR),
        queues=[find_queue(one, using).name for one in ([queue] if isinstance(queue, str) else queue)],
        without=check_without(without),
        rest=check_seconds(rest, option="rest", minimum=0, maximum=1_000),
        using=using,
        database=identity(using),  # asked before Spark starts: a database that is down is known at once
    )
    path = lake_path(lake)
    check_folder(path, to_write=True)
    with explained(f"the lake {path}"), given_or_started(spark, master) as own:
        return _archive(Lake(own, path), wish, tell)


def archivable(using: str, older_than: float | timedelta, queues: Iterable[str] = ()) -> tuple[datetime, int]:
    """The cut-off that an archive would have now, and how many jobs it would take."""
    cutoff = _cutoff(using, check_seconds(older_than, option="older_than", minimum=0, maximum=100 * YEAR))
    names = [find_queue(one, using).name for one in queues]
    return cutoff, count_archivable(cutoff, names, using=using)


@dataclass(frozen=True, slots=True)
class _Wish:
    seconds: float
    queues: list[str]
    without: list[str]
    rest: float
    using: str
    database: str


def check_without(names: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    for name in found:
        if name not in CAN_BE_LEFT_OUT:
            raise InvalidOption(
                "without", f"{name!r} cannot be left out", hint=f"These can: {', '.join(CAN_BE_LEFT_OUT)}."
            )
    return found


def _archive(lake: Lake, wish: _Wish, tell: Tell) -> Archived:
    result = Archived()
    with _only_one(wish.using) as still:
        if still is None:
            result.busy = True
            return result
        lake.create()
        _tidy(lake, wish, still, tell, result)
        result.cutoff = _cutoff(wish.using, wish.seconds)
        started = lake.begin(wish.database, result.cutoff, wish.queues, wish.without)
        written = _write(lake, started, wish, tell)
        tell(Progress("written"))
        if written.rows:
            lake.sync(started.run)
            _verify(lake, started.run, written, tell)
            lake.mark(started.run, VERIFIED, asdict(started) | asdict(written))
            tell(Progress("verified"))
            result.run, result.written = started.run, written.rows
            _delete(lake, started.run, written.rows, wish.using, still, tell, result)
        else:
            lake.remove(started.run)
        verified = lake.verified()
        result.lake_runs, result.lake_jobs = len(verified), jobs_in(verified)
    return result


# ----------------------------------------------------------------------------------------------------- one at a time


class _Still:
    """Whether the lock is still ours. It is asked before deletes, because a lost connection gives it to another."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def check(self) -> None:
        try:
            self.connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise LakeProblem(
                "The connection that kept other archives away was lost; nothing more was deleted.",
                hint="Run the archive again: it goes on where this one stopped.",
            ) from error


@contextmanager
def _only_one(using: str) -> Iterator[_Still | None]:
    """A lock of a transaction that stays open; ``None`` if another archive has it.

    Unlike a lock of the session it also holds behind a pooler. The transaction has no snapshot while it is idle, so
    it keeps no dead rows alive.
    """
    with kept_open(using, psycopg.IsolationLevel.READ_COMMITTED) as connection:
        found = connection.execute(_LOCK).fetchone()
        yield _Still(connection) if found and found[0] else None


def identity(using: str) -> str:
    """Which database this is, so that an archive never touches unfinished runs of another one."""
    sql = "SELECT system_identifier::text || '/' || current_database() FROM pg_control_system()"
    return str(rows(using, sql)[0][0])


# ------------------------------------------------------------------------------------------------------- what is old


def _cutoff(using: str, seconds: float) -> datetime:
    """By the database's clock; not before the statistics have counted the minute, if they are up to date."""
    sql = "SELECT statement_timestamp(), statement_timestamp() - %s * interval '1 second'"
    now: datetime
    cutoff: datetime
    ((now, cutoff),) = rows(using, sql, [seconds])
    counted = Maintenance.objects.using(using).values_list("counted_until", flat=True).first()
    return min(cutoff, counted) if counted is not None and counted > now - CATCH_UP else cutoff


def _finished(spark: SparkSession, started: Started, rest: float, using: str) -> DataFrame:
    options = {
        "columns": json.dumps(list(COLUMNS)),
        "queue": json.dumps(started.queues) if started.queues else "",
        "finalized_before": started.cutoff,
    }
    jobs = load(spark, options, using=using, condition=ARCHIVABLE, rest=rest)
    for name in started.without:
        jobs = jobs.withColumn(name, F.lit(None).cast(StringType()))
    left_out = F.array(*map(F.lit, started.without)).cast(ArrayType(StringType()))
    return jobs.withColumn("without", left_out).select(*JOB_SCHEMA.fieldNames())


# ----------------------------------------------------------------------------------------- write, read back, delete


def _write(lake: Lake, started: Started, wish: _Wish, tell: Tell) -> Proof:
    seen = Observation()
    jobs = _finished(lake.spark, started, wish.rest, wish.using).observe(seen, *proof())
    with watched(lake.spark, "writing", tell):
        jobs.write.mode("append").partitionBy(*PARTITIONED_BY).parquet(lake.folder(started.run))
    return Proof(**seen.get)


def _verify(lake: Lake, run: str, written: Proof, tell: Tell) -> None:
    """Read every column of every row back from where it was written, and compare."""
    with watched(lake.spark, "verifying", tell):
        (found,) = lake.read_run(run).agg(*proof(), F.count_distinct("id").alias("ids")).collect()
    read = Proof(found["rows"], found["digest"])
    if read != written or found["ids"] != written.rows:
        raise LakeProblem(
            f"Run {run} is not what was written: {written.rows} jobs ({written.digest}) went in, "
            f"{read.rows} ({read.digest}) with {found['ids']} ids came out.",
            hint="Nothing of this run was deleted. Check the disk, then run the archive again.",
        )


def _delete(lake: Lake, run: str, expected: int, using: str, still: _Still, tell: Tell, result: Archived) -> None:
    seen = deleted = kept = 0
    for queue, some in _in_batches(lake.read_run(run)):
        still.check()
        gone = services.delete_archived(queue, some, using=using)
        deleted += gone
        if gone < len(some):  # the others changed, are in use, or were deleted by an archive that was killed
            kept += Job.objects.using(using).filter(queue_id=queue, pk__in=[id for id, _ in some]).count()
        seen += len(some)
        tell(Progress("deleting", seen, expected, "jobs"))
    if seen != expected:
        raise LakeProblem(f"Run {run} held {expected} jobs when it was verified, and now {seen}.")
    lake.mark(run, DONE, {"run": run, "deleted": deleted, "kept": kept})
    result.deleted += deleted
    result.kept += kept


def _in_batches(jobs: DataFrame) -> Iterator[tuple[str, list[tuple[str, datetime]]]]:
    """Ids with the time each ended, of one queue at a time: files hold one queue each."""
    chosen = jobs.select("queue", "id", F.unix_micros("finalized_at").alias("ended"))
    found = chosen.toLocalIterator(prefetchPartitions=True)
    rest: dict[str, list[tuple[str, datetime]]] = {}
    while some := list(islice(found, 10 * AT_ONCE)):
        for queue, id, ended in some:
            batch = rest.setdefault(queue, [])
            batch.append((id, _EPOCH + timedelta(microseconds=ended)))
            if len(batch) == AT_ONCE:
                yield queue, rest.pop(queue)
    yield from rest.items()


def _tidy(lake: Lake, wish: _Wish, still: _Still, tell: Tell, result: Archived) -> None:
    """Remove what earlier runs of this database did not verify, and delete what they verified and did not delete."""
    for run in lake.runs():
        if lake.has(run, DONE):
            continue
        if lake.has(run, VERIFIED):
            document = lake.marked(run, VERIFIED)
            if document["database"] == wish.database:
                _resume(lake, run, Proof(document["rows"], document["digest"]), wish, still, tell, result)
        elif (started := lake.started(run)) is None or started.database == wish.database:
            still.check()
            lake.remove(run)
            result.removed_runs.append(run)


def _resume(lake: Lake, run: str, written: Proof, wish: _Wish, still: _Still, tell: Tell, result: Archived) -> None:
    """Delete what a run holds that another process verified. Whether its files are on disk, and whole, is not known.

    An older version did not sync them, and the power may have failed since.
    """
    lake.sync(run)
    _verify(lake, run, written, tell)
    _delete(lake, run, written.rows, wish.using, still, tell, result)
    result.resumed_runs.append(run)
