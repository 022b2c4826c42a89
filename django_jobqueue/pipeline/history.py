"""All jobs: those in the lake, and those in the live table as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..conf import get_settings
from ..exceptions import InvalidOption
from ..models import Queue
from ..services.queues import find_queue, queue_name
from .lake import Lake, jobs_in
from .location import check_folder, lake_path
from .progress import Tell, watched
from .reading import job_snapshot, read_jobs


@dataclass(slots=True, kw_only=True)
class Sources:
    """What was read: the verified runs of the lake, the records in these runs, and the jobs of the live table."""

    lake: str = ""  # empty: only the live table was read
    lake_runs: int = 0
    lake_jobs: int = 0
    live_jobs: int = 0

    def sentence(self) -> str:
        live = f"{_counted(self.live_jobs, 'job')} in the live table"
        if not self.lake:
            return f"Read {live}, and no lake."
        if not self.lake_runs:
            return f"Read {live}; the lake {self.lake} holds no verified run."
        runs = f"{_counted(self.lake_runs, 'run')} with {_counted(self.lake_jobs, 'job')}"
        return f"Read {runs} in the lake {self.lake}, and {live}."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Which jobs to read: of these queues, in the live table and, unless it is ``None``, in this lake."""

    using: str
    lake: str | None
    queues: tuple[str, ...]
    gone: tuple[str, ...]  # queues that are not in the database; the lake may have jobs of them

    @property
    def place(self) -> str:
        return "the live table" if self.lake is None else f"the lake {self.lake}"


def check_scope(lake: str | None, live_only: bool, queue: str | Iterable[str], using: str) -> Scope:
    """Check queues and lake, before Spark starts. Raises ``InvalidOption``, ``QueueNotFound`` and ``LakeProblem``."""
    if live_only and lake is not None:
        raise InvalidOption("live_only", "contradicts the lake that was given", hint="Leave out one of the two.")
    names = tuple(queue_name(name) for name in ([queue] if isinstance(queue, str) else queue))
    known = set(Queue.objects.using(using).values_list("name", flat=True))
    gone = tuple(name for name in names if name not in known)
    if live_only or (lake is None and not get_settings().LAKE):
        for name in gone:
            find_queue(name, using)  # raises, and names the queues that exist
        return Scope(using, None, names, ())
    path = lake_path(lake)
    check_folder(path, holds_runs=True)
    return Scope(using, path, names, gone)


@contextmanager
def history(
    spark: SparkSession, scope: Scope, sources: Sources, columns: Iterable[str], tell: Tell, **filters: Any
) -> Iterator[DataFrame]:
    """Every job of the scope, once; counts what was read in ``sources``.

    The live table is read with one snapshot, which is released when Spark has the rows. The lake is listed after the
    snapshot was taken, so a job that an archive deleted before the snapshot is in a verified run that is listed.
    """
    names = list(columns)
    with job_snapshot(using=scope.using) as snapshot:
        live = read_jobs(spark, columns=names, queue=scope.queues, snapshot=snapshot, using=scope.using, **filters)
        live = live.persist(StorageLevel.MEMORY_AND_DISK)
        archived = _archived(spark, scope, sources, filters)
        with watched(spark, "reading", tell):
            sources.live_jobs = live.count()
    try:
        yield live if archived is None else live_over_archived(archived.select(*names), live)
    finally:
        live.unpersist()


def _archived(spark: SparkSession, scope: Scope, sources: Sources, filters: dict[str, Any]) -> DataFrame | None:
    if scope.lake is None:
        return None
    lake = Lake(spark, scope.lake)
    verified = lake.check().verified()
    sources.lake, sources.lake_runs, sources.lake_jobs = scope.lake, len(verified), jobs_in(verified)
    if unknown := set(scope.gone) - (lake.queues(verified) if scope.gone else set()):
        find_queue(min(unknown), scope.using)  # raises, and names the queues that exist
    jobs = lake.read(verified)
    if scope.queues:
        jobs = jobs.where(F.col("queue").isin(*scope.queues))
    for name, values in filters.items():
        jobs = jobs.where(F.col(name).isin(*values))
    return jobs


def live_over_archived(archived: DataFrame, live: DataFrame) -> DataFrame:
    """The jobs of both; a job that is in both is taken from the live table, where it may have changed since."""
    return archived.join(live.select("id"), "id", "left_anti").unionByName(live)
