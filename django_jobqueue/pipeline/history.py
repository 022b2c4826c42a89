"""Every job that ever was: those of the lake, and those of the live table as they are now."""

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
    """What was read: the verified runs of the lake, the records in all of them, and jobs of the live table."""

    lake: str = ""  # empty: the live table alone
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


def _counted(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Which jobs are meant: of these queues, in this lake and the live table, or in the live table alone."""

    using: str
    lake: str | None
    queues: tuple[str, ...]
    gone: tuple[str, ...]  # the queues of these names are not in the database; the lake may have their jobs

    @property
    def place(self) -> str:
        return "the live table" if self.lake is None else f"the lake {self.lake}"


def scope(lake: str | None, live_only: bool, queue: str | Iterable[str], using: str) -> Scope:
    """Ask the database and look at the lake, before Spark starts. Raises what makes no sense."""
    if live_only and lake is not None:
        raise InvalidOption("live_only", "contradicts the lake that was given", hint="Leave out one of the two.")
    names = tuple(queue_name(one) for one in ([queue] if isinstance(queue, str) else queue))
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
    spark: SparkSession, wanted: Scope, sources: Sources, columns: Iterable[str], tell: Tell, **filters: Any
) -> Iterator[DataFrame]:
    """Every job that is meant, once; what was read is counted in ``sources``.

    The live ones are read with one snapshot, which is let go as soon as they are here. The lake is listed after the
    snapshot was taken: what an archive deleted before that is in a run that was verified before that.
    """
    names = list(columns)
    with job_snapshot(using=wanted.using) as snapshot:
        live = read_jobs(spark, columns=names, queue=wanted.queues, snapshot=snapshot, using=wanted.using, **filters)
        live = live.persist(StorageLevel.MEMORY_AND_DISK)
        archived = _archived(spark, wanted, sources, filters)
        with watched(spark, "reading", tell):
            sources.live_jobs = live.count()
    try:
        yield live if archived is None else everywhere(archived.select(*names), live)
    finally:
        live.unpersist()


def _archived(spark: SparkSession, wanted: Scope, sources: Sources, filters: dict[str, Any]) -> DataFrame | None:
    if wanted.lake is None:
        return None
    lake = Lake(spark, wanted.lake)
    verified = lake.check().verified()
    sources.lake, sources.lake_runs, sources.lake_jobs = wanted.lake, len(verified), jobs_in(verified)
    if unknown := set(wanted.gone) - (lake.queues(verified) if wanted.gone else set()):
        find_queue(min(unknown), wanted.using)  # raises, and names the queues that exist
    jobs = lake.read(verified)
    if wanted.queues:
        jobs = jobs.where(F.col("queue").isin(*wanted.queues))
    for name, values in filters.items():
        jobs = jobs.where(F.col(name).isin(*values))
    return jobs


def everywhere(archived: DataFrame, live: DataFrame) -> DataFrame:
    """Both together; a job that is in both is taken from the live table, where it may have gone on."""
    return archived.join(live.select("id"), "id", "left_anti").unionByName(live)
