"""The order audit: reads the lake and the live table, and lists breaches of the order."""

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
from .history import Scope, Sources, check_scope, history
from .order import COLUMNS, breaches_of_order
from .progress import Tell, tell_nobody, watched
from .session import given_or_started

MOST_BREACHES = 1_000


@dataclass(slots=True, kw_only=True)
class Audit(Sources):
    """How many jobs and keys were checked, the number of breaches, and at most a thousand of them."""

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
    """Check in the lake and the live table that each key kept its order, and list the breaches.

    ``lake`` is by default ``JOBQUEUE["LAKE"]``; without either, or with ``live_only``, only the live table is read.
    Raises ``InvalidOption``, ``QueueNotFound``, ``SparkUnavailable``, and ``LakeProblem``, also if there is no lake.
    """
    scope = check_scope(lake, live_only, queue, database(using))
    with explained(scope.place), given_or_started(spark, master) as session:
        return _audit(session, scope, tell)


def _audit(spark: SparkSession, scope: Scope, tell: Tell) -> Audit:
    audit = Audit()
    with history(spark, scope, audit, COLUMNS, tell, policy=sorted(LANED)) as jobs:
        with watched(spark, "counting", tell):
            counts = jobs.agg(F.count(F.lit(1)), F.count_distinct("queue", "singleton_key")).collect()
            ((audit.jobs, audit.keys),) = counts
        with watched(spark, "comparing", tell):
            breaches = breaches_of_order(jobs).persist(StorageLevel.MEMORY_AND_DISK)
            audit.number = breaches.count()
            listed = breaches.orderBy("queue", "singleton_key", "second_from").limit(MOST_BREACHES)
            audit.breaches = [_without_open_end(as_dict(row)) for row in listed.collect()]
            breaches.unpersist()
    return audit


def _without_open_end(row: dict[str, Any]) -> dict[str, Any]:
    """The breach with no end for its first job if that job has not ended."""
    if row["first_until"] is not None and row["first_until"].year > 9000:
        row["first_until"] = None
    return row
