"""Breaches of the order of keys, as pure functions of DataFrames of jobs.

There are three kinds. An *overlap*: two attempts of a key ran at the same time. An *interruption*: a job began while an
earlier started job of its key had not ended, because it waited for its retry or for an operator. An *overtaking*: a
job began before an earlier job of its key that was due and visible to its claim. The earlier job was visible if its
sender's transaction was older than the oldest transaction that was open when the later job was claimed.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..policies import LANED, ORDERED
from ..states import DEAD, FINAL, RUNNING, JobState

COLUMNS = (
    "id", "queue", "singleton_key", "policy", "state", "seq", "sent_xid", "claim_xmin", "first_start_after",
    "started_at", "assigned_at", "finalized_at", "attempt", "attempts",
)  # fmt: skip
BREACH = (
    "kind", "queue", "singleton_key", "first_id", "first_seq", "first_from", "first_until", "second_id", "second_seq",
    "second_from",
)  # fmt: skip
# A delayed job may become due after a claim has looked at the lane and before the claim writes its time.
DUE_FOR_SECONDS = 10

_KEY = ("queue", "singleton_key")

_HISTORY = "array<struct<attempt: int, started: string, ended: string>>"


def _open() -> Column:
    """The end of a job that has not ended; a function, because Spark makes columns only if a session exists."""
    return F.to_timestamp(F.lit("9999-01-01"))


def breaches_of_order(jobs: DataFrame) -> DataFrame:
    """Every breach with both jobs; the first is the job that should have run before the second, or alone."""
    laned = jobs.where(F.col("policy").isin(*sorted(LANED))).select(*COLUMNS)
    ordered = laned.where(F.col("policy") == ORDERED)
    overlapping = overlaps(attempts_of(laned))
    pairs = overlapping.select("first_id", "second_id")
    interrupting = interruptions(ordered).join(pairs, ["first_id", "second_id"], "left_anti")
    breaches = [overlapping, interrupting.select(*BREACH), overtakings(ordered)]
    return reduce(DataFrame.unionByName, breaches).select(*BREACH)


def attempts_of(jobs: DataFrame) -> DataFrame:
    """Each attempt with its begin and its end; an attempt that still runs ends in the far future."""
    failed = jobs.withColumn("failed", F.explode(F.from_json("attempts", _HISTORY))).select(
        *_KEY,
        "id",
        "seq",
        F.col("failed.attempt").alias("attempt"),
        F.col("failed.started").try_cast("timestamp").alias("began_at"),
        F.col("failed.ended").try_cast("timestamp").alias("ended_at"),
    )
    last = jobs.where(F.col("state").isin(JobState.COMPLETED.value, *sorted(RUNNING))).select(
        *_KEY, "id", "seq", "attempt", F.col("assigned_at").alias("began_at"), F.col("finalized_at").alias("ended_at")
    )
    known = failed.unionByName(last).where(F.col("began_at").isNotNull())
    # A worker that was declared lost may still complete: then its attempt is recorded twice, and the later end counts.
    ended = F.max(F.coalesce("ended_at", _open())).alias("ended_at")
    merged = known.groupBy(*_KEY, "id", "seq", "attempt").agg(F.min("began_at").alias("began_at"), ended)
    return merged.select(*_KEY, "id", "seq", "attempt", "began_at", "ended_at")


def overlaps(attempts: DataFrame) -> DataFrame:
    """Attempts that began before an earlier attempt of their key had ended."""
    return _begun_inside(attempts, "overlap")


def interruptions(jobs: DataFrame) -> DataFrame:
    """Jobs of ordered queues that began while an earlier started job of their key had not ended."""
    over = F.col("state").isin(*sorted(FINAL - DEAD))
    blocking = jobs.where(F.col("started_at").isNotNull()).select(
        *_KEY,
        "id",
        "seq",
        F.col("started_at").alias("began_at"),
        F.when(over, F.col("finalized_at")).otherwise(_open()).alias("ended_at"),
    )
    return _begun_inside(blocking, "interruption")


def _begun_inside(spans: DataFrame, kind: str) -> DataFrame:
    """Spans that begin inside an earlier span of their key; each is compared with the earlier span that ends last."""
    before = Window.partitionBy(*_KEY).orderBy("began_at", "ended_at", "seq").rowsBetween(Window.unboundedPreceding, -1)
    span = F.struct("ended_at", "began_at", "id", "seq")
    inside = spans.withColumn("other", F.max(span).over(before)).where(F.col("began_at") < F.col("other.ended_at"))
    return inside.select(
        F.lit(kind).alias("kind"),
        *_KEY,
        F.col("other.id").alias("first_id"),
        F.col("other.seq").alias("first_seq"),
        F.col("other.began_at").alias("first_from"),
        F.col("other.ended_at").alias("first_until"),
        F.col("id").alias("second_id"),
        F.col("seq").alias("second_seq"),
        F.col("began_at").alias("second_from"),
    )


def overtakings(jobs: DataFrame) -> DataFrame:
    """Jobs that began before an earlier job of their key that was due and visible to their claim.

    Only jobs that began out of the order of sends are compared; a late commit or a delay may explain them.
    """
    left = F.coalesce("started_at", "finalized_at", _open())  # when it stopped waiting for its first attempt
    waiting = jobs.withColumn("left_at", left)
    in_key = Window.partitionBy(*_KEY).orderBy("left_at", "seq")
    later = in_key.rowsBetween(1, Window.unboundedFollowing)
    sooner = in_key.rowsBetween(Window.unboundedPreceding, -1)
    placed = waiting.withColumn("lowest_later", F.min("seq").over(later)).withColumn(
        "highest_sooner", F.max("seq").over(sooner)
    )
    second = placed.where(F.col("started_at").isNotNull() & (F.col("lowest_later") < F.col("seq")))
    first = placed.where(F.col("highest_sooner") > F.col("seq"))
    joined = first.alias("first").join(second.alias("second"), _was_overtaken(), "inner")
    return joined.select(
        F.lit("overtaking").alias("kind"),
        F.col("first.queue").alias("queue"),
        F.col("first.singleton_key").alias("singleton_key"),
        F.col("first.id").alias("first_id"),
        F.col("first.seq").alias("first_seq"),
        F.col("first.started_at").alias("first_from"),
        F.col("first.left_at").alias("first_until"),
        F.col("second.id").alias("second_id"),
        F.col("second.seq").alias("second_seq"),
        F.col("second.started_at").alias("second_from"),
    )


def _was_overtaken() -> Column:
    was_due = F.col("first.first_start_after") + F.expr(f"INTERVAL {DUE_FOR_SECONDS} SECONDS")
    return (
        (F.col("first.queue") == F.col("second.queue"))
        & (F.col("first.singleton_key") == F.col("second.singleton_key"))
        & (F.col("first.seq") < F.col("second.seq"))
        & (F.col("first.left_at") > F.col("second.started_at"))
        & (F.col("first.sent_xid") < F.col("second.claim_xmin"))
        & (F.col("first.first_start_after").isNull() | (was_due <= F.col("second.started_at")))
    )
