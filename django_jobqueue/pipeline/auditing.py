"""The edges of the order audit: lake and live table in, breaches out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ..engine.databases import database
from ..policies import LANED
from .collected import as_dict
from .failures import explained
from .history import Scope, Sources, history, scope
from .order import COLUMNS, breaches_of_order
from .progress import Tell, tell_nobody, watched
from .session import given_or_started

MOST_BREACHES = 1_000


@dataclass(slots=True, kw_only=True)
class Audit(Sources):
    """How many jobs and keys were looked at, and the breaches, of which at most a thousand are listed."""

    jobs: int = 0
    keys: int = 0
    number: int = 0
    breaches: list[dict[str, Any]] = field(default_factory=list)


def audit_order(
    *,
    lake: str | None = None,
    live_only: bool = False,
    queue: str | Iterable[str] = (),
    spark: SparkSession | None = None,
    master: str | None = None,
    tell: Tell = tell_nobody,
    using: str | None = None,
) -> Audit:
    """Prove over lake and live table that each key kept its order, or list the breaches.

    ``lake`` is by default ``JOBQUEUE["LAKE"]``; without either, or with ``live_only``, only the live table is read.
    Raises ``InvalidOption``, ``QueueNotFound``, ``SparkUnavailable`` and ``LakeProblem``, also when there is no lake.
    """
    wanted = scope(lake, live_only, queue, database(using))
    with explained(wanted.place), given_or_started(spark, master) as own:
        return _audit(own, wanted, tell)


def _audit(spark: SparkSession, wanted: Scope, tell: Tell) -> Audit:
    found = Audit()
    with history(spark, wanted, found, COLUMNS, tell, policy=sorted(LANED)) as jobs:
        with watched(spark, "counting", tell):
            counts = jobs.agg(F.count(F.lit(1)), F.count_distinct("queue", "singleton_key")).collect()
            ((found.jobs, found.keys),) = counts
        with watched(spark, "comparing", tell):
            breaches = breaches_of_order(jobs).persist(StorageLevel.MEMORY_AND_DISK)
            found.number = breaches.count()
            listed = breaches.orderBy("queue", "singleton_key", "second_from").limit(MOST_BREACHES)
            found.breaches = [_without_end(as_dict(row)) for row in listed.collect()]
            breaches.unpersist()
    return found


def _without_end(row: dict[str, Any]) -> dict[str, Any]:
    """What is not over has no end."""
    if row["first_until"] is not None and row["first_until"].year > 9000:
        row["first_until"] = None
    return row
