"""The tables of the analysis: pure functions of DataFrames of jobs; the columns of each table are a contract.

A job *waited* from the time at which it was due until its first attempt began; it *ran* from the begin of its last
attempt to its end. Percentiles are exact for up to ten thousand different values; for more, the rank may be wrong by
one ten-thousandth.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..policies import ORDERED
from ..states import DEAD, FINAL, FailureReason, JobState

COLUMNS = (
    "id", "queue", "name", "state", "policy", "singleton_key", "created_at", "first_start_after", "started_at",
    "assigned_at", "finalized_at", "retry_count", "reason", "fingerprint", "attempts",
)  # fmt: skip
PERCENTILES = (0.5, 0.95, 0.99)
ACCURACY = 10_000
TOP = 20
HOUR, DAY = "hour", "day"
_HISTORY = "array<struct<ended: string, outcome: string>>"


def measured(jobs: DataFrame) -> DataFrame:
    """Each job with how it ended, and how many seconds it waited and ran."""
    due = F.greatest("created_at", F.coalesce("first_start_after", "created_at"))
    failed = F.col("state").isin(*sorted(DEAD)) | (F.col("reason") == FailureReason.EXHAUSTED.value)
    completed = F.col("state") == JobState.COMPLETED.value
    return jobs.select(
        *COLUMNS,
        F.when(F.col("started_at").isNotNull(), _seconds("started_at", due)).alias("waited"),
        F.when(completed, _seconds("finalized_at", F.col("assigned_at"))).alias("ran"),
        completed.cast("int").alias("completed"),
        failed.cast("int").alias("failed"),
    )


def _seconds(until: str, since: Column) -> Column:
    return (F.unix_micros(until) - F.unix_micros(since)) / 1_000_000


def _quantiles(name: str) -> list[Column]:
    values = F.percentile_approx(name, [*PERCENTILES], ACCURACY)
    return [values[index].alias(f"{name}_p{round(share * 100)}") for index, share in enumerate(PERCENTILES)]


def _summary() -> list[Column]:
    ended = F.sum("completed") + F.sum("failed")
    return [
        F.count(F.lit(1)).alias("jobs"),
        F.sum("completed").alias("completed"),
        F.sum("failed").alias("failed"),
        F.sum("retry_count").alias("retries"),
        F.when(ended > 0, F.sum("failed") / ended).alias("failure_rate"),
        *_quantiles("waited"),
        *_quantiles("ran"),
    ]


def by_handler(jobs: DataFrame) -> DataFrame:
    """Per queue and handler: how many jobs, how they ended, and how long they waited and ran."""
    return measured(jobs).groupBy("queue", "name").agg(*_summary()).orderBy("queue", "name")


def by_time(jobs: DataFrame, unit: str = HOUR, per: Sequence[str] = ("queue", "name")) -> DataFrame:
    """The same for the jobs that ended in each hour or day (UTC), per queue and handler, or only per queue."""
    ended = measured(jobs).where(F.col("finalized_at").isNotNull())
    timed = ended.withColumn("time", F.date_trunc(unit, "finalized_at"))
    return timed.groupBy("time", *per).agg(*_summary()).orderBy("time", *per)


def failures(jobs: DataFrame) -> DataFrame:
    """Failures by fingerprint, the most frequent first: queue, handler, reason, number, first and last time."""
    failed = measured(jobs).where((F.col("failed") == 1) & (F.col("fingerprint") != ""))
    counted = failed.groupBy("fingerprint", "queue", "name", "reason").agg(
        F.count(F.lit(1)).alias("jobs"), F.min("finalized_at").alias("first_at"), F.max("finalized_at").alias("last_at")
    )
    return counted.orderBy(F.col("jobs").desc(), "fingerprint", "queue", "name")


def blocked(jobs: DataFrame, now: Column) -> DataFrame:
    """How long keys of ordered queues were blocked, from a job's first failure to its end, and what released them."""
    ordered = jobs.where(F.col("policy") == ORDERED)
    first_failure = F.array_min(F.transform(F.from_json("attempts", _HISTORY), lambda attempt: attempt["ended"]))
    since = ordered.withColumn("since", first_failure.try_cast("timestamp")).where(F.col("since").isNotNull())
    over = F.when(F.col("state").isin(*sorted(FINAL - DEAD)), F.col("finalized_at")).otherwise(now)
    how = (
        F.when(F.col("state") == JobState.COMPLETED.value, "retried")
        .when(F.col("reason") == FailureReason.SKIPPED.value, "skipped")
        .when(F.col("state").isin(*sorted(FINAL - DEAD)), "stopped")
        .otherwise("still blocked")
    )
    timed = since.select("queue", "singleton_key", how.alias("released"), over.alias("over"), "since")
    seconds = (F.unix_micros("over") - F.unix_micros("since")) / 1_000_000
    grouped = timed.withColumn("seconds", seconds).groupBy("queue", "released")
    return grouped.agg(
        F.count(F.lit(1)).alias("times"),
        F.count_distinct("singleton_key").alias("keys"),
        F.sum("seconds").alias("seconds"),
        F.max("seconds").alias("longest"),
    ).orderBy("queue", "released")


def busiest_keys(jobs: DataFrame, top: int = TOP) -> DataFrame:
    """The keys with the most jobs."""
    return _keys(jobs).orderBy(F.col("jobs").desc(), "queue", "singleton_key").limit(top)


def slowest_keys(jobs: DataFrame, top: int = TOP) -> DataFrame:
    """The keys whose jobs ran longest."""
    ran = _keys(jobs).where(F.col("ran_p95").isNotNull())
    return ran.orderBy(F.col("ran_p95").desc(), "queue", "singleton_key").limit(top)


def _keys(jobs: DataFrame) -> DataFrame:
    keyed = measured(jobs).where(F.col("singleton_key") != "")
    return keyed.groupBy("queue", "singleton_key").agg(F.count(F.lit(1)).alias("jobs"), *_quantiles("ran"))


def backlog(jobs: DataFrame, unit: str = HOUR) -> DataFrame:
    """How many jobs of each queue had not ended at the end of each hour or day in which a job was sent or ended."""
    sent = jobs.select("queue", F.date_trunc(unit, "created_at").alias("time"), F.lit(1).alias("change"))
    over = jobs.where(F.col("finalized_at").isNotNull())
    ended = over.select("queue", F.date_trunc(unit, "finalized_at").alias("time"), F.lit(-1).alias("change"))
    changes = sent.unionByName(ended).groupBy("queue", "time").agg(F.sum("change").alias("change"))
    so_far = Window.partitionBy("queue").orderBy("time").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return changes.select("queue", "time", F.sum("change").over(so_far).alias("waiting")).orderBy("queue", "time")
