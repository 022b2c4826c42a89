"""The edges of the order audit: lake and live table in, breaches out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..conf import get_settings
from ..policies import LANED
from ..services.queues import named
from ..services.transactions import database
from .collected import as_dict
from .lake import Lake
from .order import COLUMNS, breaches_of_order
from .progress import Tell, tell_nobody, watched
from .reading import job_snapshot, read_jobs
from .session import spark_session

MOST_BREACHES = 1_000


@dataclass(slots=True)
class Audit:
    """How many jobs and keys were looked at, and the breaches, of which at most a thousand are listed."""

    jobs: int = 0
    keys: int = 0
    number: int = 0
    breaches: list[dict[str, Any]] = field(default_factory=list)


def audit_order(
    *,
    lake: str | None = None,
    queue: str | Iterable[str] = (),
    spark: SparkSession | None = None,
    master: str | None = None,
    tell: Tell = tell_nobody,
    using: str | None = None,
) -> Audit:
    """Prove over lake and live table that each key kept its order, or list who broke it.

    ``lake`` is by default ``JOBQUEUE["LAKE"]``; without either only the live table is looked at. Raises
    ``SparkUnavailable`` and ``LakeProblem``.
    """
    using = database(using)
    queues = [named(one) for one in ([queue] if isinstance(queue, str) else queue)]
    if spark is not None:
        return _audit(spark, lake, queues, tell, using)
    with spark_session(master) as own:
        return _audit(own, lake, queues, tell, using)


def _audit(spark: SparkSession, lake: str | None, queues: list[str], tell: Tell, using: str) -> Audit:
    with history(spark, lake, COLUMNS, queues, using, tell, policy=sorted(LANED)) as jobs:
        with watched(spark, "counting", tell):
            ((number_of_jobs, keys),) = jobs.agg(
                F.count(F.lit(1)), F.count_distinct("queue", "singleton_key")
            ).collect()
        with watched(spark, "comparing", tell):
            breaches = breaches_of_order(jobs).persist(StorageLevel.MEMORY_AND_DISK)
            number = breaches.count()
            listed = breaches.orderBy("queue", "singleton_key", "second_from").limit(MOST_BREACHES)
            found = [_without_end(as_dict(row)) for row in listed.collect()]
            breaches.unpersist()
    return Audit(jobs=number_of_jobs, keys=keys, number=number, breaches=found)


def _without_end(row: dict[str, Any]) -> dict[str, Any]:
    """What is not over has no end."""
    if row["first_until"] is not None and row["first_until"].year > 9000:
        row["first_until"] = None
    return row


@contextmanager
def history(
    spark: SparkSession,
    lake: str | None,
    columns: Iterable[str],
    queues: list[str],
    using: str,
    tell: Tell = tell_nobody,
    **filters: Any,
) -> Iterator[DataFrame]:
    """Every job that ever was, once: those of the lake, and those of the live table as they are now.

    The live ones are read with one snapshot, which is let go as soon as they are here. The lake is listed after the
    snapshot was taken: what an archive deleted before that is in a run that was verified before that.
    """
    names = list(columns)
    with job_snapshot(using=using) as snapshot:
        live = read_jobs(spark, columns=names, queue=queues, snapshot=snapshot, using=using, **filters)
        live = live.persist(StorageLevel.MEMORY_AND_DISK)
        archived = archived_jobs(spark, lake, queues, filters)
        with watched(spark, "reading", tell):
            live.count()
    try:
        yield live if archived is None else everywhere(archived.select(*names), live)
    finally:
        live.unpersist()


def archived_jobs(
    spark: SparkSession, lake: str | None, queues: list[str], filters: dict[str, Any]
) -> DataFrame | None:
    if not (lake or get_settings().LAKE):
        return None
    jobs = Lake(spark, lake).read()
    if queues:
        jobs = jobs.where(F.col("queue").isin(*queues))
    for name, values in filters.items():
        jobs = jobs.where(F.col(name).isin(*values))
    return jobs


def everywhere(archived: DataFrame, live: DataFrame) -> DataFrame:
    """Both together; a job that is in both is taken from the live table, where it may have gone on."""
    return archived.join(live.select("id"), "id", "left_anti").unionByName(live)
