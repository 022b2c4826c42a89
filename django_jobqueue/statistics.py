"""What happened in each minute, counted once from the job table and kept when the jobs are gone.

A histogram is a list of numbers: how many times fell into each bucket. The first bucket is below a millisecond, and
each further one reaches twice as far: bucket ``n`` holds times from ``BOUNDS[n - 1]`` to below ``BOUNDS[n]`` seconds,
the last everything longer than twelve days. Buckets at the end that are empty are left out.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate, zip_longest
from typing import Any

from django.db import DatabaseError, connections, transaction

from .conf import get_settings
from .engine.databases import database
from .engine.sql.parts import IS_BLOCKED_KEY, NOW, listed
from .engine.transactions import execute, in_transaction, joins, rows
from .models import Maintenance, Queue, QueueMinute, QueueTotal
from .services.inspect import total_waiting
from .states import DEAD, FailureReason, JobState

BOUNDS = tuple(2**n / 1000 for n in range(31))  # in seconds: where each bucket but the last ends
COUNTERS = ("sent", "started", "completed", "failed", "retried")
HISTOGRAMS = ("waited", "ran")
CATCH_UP = timedelta(hours=1)
AGAIN = timedelta(minutes=2)  # minutes counted a second time, because a transaction may have been slow to commit
_LOCK = 0x6A6F62_6D696E  # "jobmin": only one process counts at a time

logger = logging.getLogger("django_jobqueue.statistics")

Histogram = Sequence[int]


def bucket_of(seconds: float) -> int:
    """The number of the bucket that a time falls into."""
    return bisect_right(BOUNDS, seconds)


def percentile(histogram: Histogram, share: float) -> float | None:
    """The time in seconds below which this share of the times lies, or ``None`` without any.

    As exact as its bucket: times are taken to be spread evenly within one. What lies in the last bucket is told as
    its lower end.
    """
    total = sum(histogram)
    if not total:
        return None
    wanted = min(max(share, 0.0), 1.0) * total
    for bucket, (upto, number) in enumerate(zip(accumulate(histogram), histogram, strict=True)):
        if number and upto >= wanted:
            low, high = _edges(bucket)
            return low + (high - low) * max(0.0, wanted - (upto - number)) / number
    raise AssertionError("unreachable")


def sum_of(histogram: Histogram) -> float:
    """About how many seconds the times are together: each counts as the middle of its bucket."""
    return sum(number * sum(_edges(bucket)) / 2 for bucket, number in enumerate(histogram))


def _edges(bucket: int) -> tuple[float, float]:
    low = BOUNDS[bucket - 1] if bucket else 0.0
    return low, BOUNDS[bucket] if bucket < len(BOUNDS) else low


def merged(one: Histogram, other: Histogram) -> list[int]:
    """Both histograms as one."""
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]


# --------------------------------------------------------------------------------------------------------- counting

# Each reads only the ranges of the table that were written since, by the index of ranges; see explanation/maintenance.
_BUCKET = f"width_bucket((extract(epoch FROM {{}}) * 1000)::float8, ARRAY{[2**n for n in range(31)]}::float8[])"
_MINUTE = "date_trunc('minute', {}, 'UTC')"
_WITHIN = "{0} >= %(since)s AND {0} < %(until)s"
_SINCE_DUE = "started_at - GREATEST(created_at, COALESCE(first_start_after, created_at))"
_HAS_FAILED = f"(state IN {listed(DEAD)} OR reason = '{FailureReason.EXHAUSTED}')"
_FAILURES = listed(
    {
        FailureReason.ERROR,
        FailureReason.EXPIRED,
        FailureReason.HEARTBEAT,
        FailureReason.WORKER_LOST,
        FailureReason.NO_HANDLER,
    }
)

SENT = f"""
SELECT queue_id, {_MINUTE.format("created_at")}, count(*) FROM jobqueue_job
WHERE {_WITHIN.format("created_at")} GROUP BY 1, 2
"""
STARTED = f"""
SELECT queue_id, {_MINUTE.format("started_at")}, {_BUCKET.format(_SINCE_DUE)}, count(*) FROM jobqueue_job
WHERE {_WITHIN.format("started_at")} GROUP BY 1, 2, 3
"""
ENDED = f"""
SELECT queue_id, {_MINUTE.format("finalized_at")}, state = '{JobState.COMPLETED}',
    {_BUCKET.format("finalized_at - assigned_at")}, count(*) FROM jobqueue_job
WHERE {_WITHIN.format("finalized_at")} AND (state = '{JobState.COMPLETED}' OR {_HAS_FAILED}) GROUP BY 1, 2, 3, 4
"""
# A failed attempt is in its job's history; the one with which the job failed for good is not followed by a retry.
RETRIED = f"""
SELECT queue_id, {_MINUTE.format("ended")}, count(*) FROM (
    SELECT j.queue_id, (a->>'ended')::timestamptz AS ended
    FROM jobqueue_job j CROSS JOIN LATERAL jsonb_array_elements(j.attempts) a
    WHERE j.attempt_finished_at >= %(since)s AND a->>'outcome' IN {_FAILURES}
        AND NOT ({_HAS_FAILED} AND (a->>'attempt')::int = j.attempt)) attempts
WHERE {_WITHIN.format("ended")} GROUP BY 1, 2
"""
BLOCKED = f"SELECT queue_id, count(*) FROM jobqueue_job WHERE {IS_BLOCKED_KEY} GROUP BY queue_id"

RANGES = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'jobqueue_job_ranges'::regclass"
SUMMARIZE = "SELECT brin_summarize_new_values(%s::regclass)"

FORGET = f"""
DELETE FROM jobqueue_queueminute WHERE id IN (
    SELECT old.id FROM jobqueue_queue q CROSS JOIN LATERAL (
        SELECT m.id FROM jobqueue_queueminute m
        WHERE m.queue_id = q.name AND m.minute < {NOW} - %(days)s * interval '1 day'
        ORDER BY m.minute LIMIT %(most)s) old LIMIT %(most)s)
"""


@dataclass(slots=True)
class _Counts:
    """What was counted for one queue and minute."""

    numbers: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in HISTOGRAMS})
    waiting: int | None = None
    blocked_keys: int | None = None

    def add(self, name: str, number: int) -> None:
        self.numbers[name] += number

    def put(self, name: str, bucket: int, number: int) -> None:
        histogram = self.histograms[name]
        histogram += [0] * (bucket + 1 - len(histogram))
        histogram[bucket] += number


_Key = tuple[str, datetime]  # a queue and a minute


def fill_minutes(*, using: str | None = None) -> int:
    """Count every complete minute that is not counted yet, of the last hour at most; how many minutes that were.

    Only one process counts at a time, and another that asks meanwhile is told 0.
    """
    using = database(using)
    if not joins(connections[using]):
        _summarize(using)
    return in_transaction(using, partial(_fill, using))


def _summarize(using: str) -> None:
    """Ranges that nobody has summarized are read as a whole; autovacuum does it, where it is on and not behind.

    Whoever vacuums a table is left alone.
    """
    for (index,) in rows(using, RANGES):
        try:
            with transaction.atomic(using=using):
                execute(using, "SET LOCAL lock_timeout = '100ms'")
                rows(using, SUMMARIZE, [index])
        except DatabaseError as error:
            logger.debug("ranges could not be summarized", extra={"index": index, "error": str(error).strip()})


def forget_old_minutes(*, limit: int = 10_000, using: str | None = None) -> int:
    """Delete minutes older than ``STATISTICS_DAYS``, at most ``limit`` of them; how many that were."""
    using = database(using)
    params = {"days": get_settings().STATISTICS_DAYS, "most": limit}
    return in_transaction(using, partial(execute, using, FORGET, params))


def _fill(using: str) -> int:
    if not rows(using, "SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])[0][0]:
        return 0
    until = rows(using, f"SELECT {_MINUTE.format(NOW)}")[0][0]
    counted_until = Maintenance.objects.using(using).values_list("counted_until", flat=True).first()
    if counted_until == until:
        return 0
    first = until - CATCH_UP
    if counted_until is not None and first < counted_until < until:  # it lies ahead when the clock was put back
        first = counted_until
    counts = _count(using, max(first - AGAIN, until - CATCH_UP), until)
    _look_around(using, counts, until - timedelta(minutes=1))
    _store(using, counts)
    Maintenance.objects.using(using).update_or_create(pk=Maintenance.ONLY, defaults={"counted_until": until})
    return int((until - first) / timedelta(minutes=1))


def _count(using: str, since: datetime, until: datetime) -> dict[_Key, _Counts]:
    counts: dict[_Key, _Counts] = defaultdict(_Counts)
    span = {"since": since, "until": until}
    for queue, minute, number in rows(using, SENT, span):
        counts[queue, minute].add("sent", number)
    for queue, minute, bucket, number in rows(using, STARTED, span):
        counts[queue, minute].add("started", number)
        counts[queue, minute].put("waited", bucket, number)
    for queue, minute, is_completed, bucket, number in rows(using, ENDED, span):
        counts[queue, minute].add("completed" if is_completed else "failed", number)
        if bucket is not None:
            counts[queue, minute].put("ran", bucket, number)
    for queue, minute, number in rows(using, RETRIED, span):
        counts[queue, minute].add("retried", number)
    return counts


def _look_around(using: str, counts: dict[_Key, _Counts], minute: datetime) -> None:
    """What waits and is blocked now stands for the end of the last minute; of earlier ones nobody knows it any more."""
    waiting, blocked = total_waiting(using=using), dict(rows(using, BLOCKED))
    for queue in {*waiting, *blocked, *(name for name, when in counts if when == minute)}:
        counts[queue, minute].waiting = waiting[queue]
        counts[queue, minute].blocked_keys = blocked.get(queue, 0)


def _store(using: str, counts: Mapping[_Key, _Counts]) -> None:
    """Write the minutes, and add what is new in them to the totals.

    A minute that was counted before only grows: jobs that were deleted since, or revived, did happen.
    """
    existing = set(Queue.objects.using(using).values_list("pk", flat=True))
    known = {
        (row.queue_id, row.minute): row
        for row in QueueMinute.objects.using(using).filter(
            queue__in={queue for queue, _ in counts}, minute__in={minute for _, minute in counts}
        )
    }
    written: list[QueueMinute] = []
    added: dict[str, _Counts] = defaultdict(_Counts)
    for (queue, minute), count in counts.items():
        if queue in existing:
            before = known.get((queue, minute)) or QueueMinute(queue_id=queue, minute=minute, **_ZERO)
            written.append(_grown(before, count, added[queue]))
    QueueMinute.objects.using(using).bulk_create(
        written,
        update_conflicts=True,
        unique_fields=["queue", "minute"],
        update_fields=[*COUNTERS, *HISTOGRAMS, "waiting", "blocked_keys"],
    )
    _add_to_totals(using, added)


_ZERO: dict[str, Any] = dict.fromkeys(COUNTERS, 0)


def _grown(before: QueueMinute, count: _Counts, added: _Counts) -> QueueMinute:
    after = QueueMinute(queue_id=before.queue_id, minute=before.minute)
    for name in COUNTERS:
        had = getattr(before, name)
        setattr(after, name, max(had, count.numbers[name]))
        added.add(name, getattr(after, name) - had)
    for name in HISTOGRAMS:
        pairs = list(zip_longest(getattr(before, name), count.histograms[name], fillvalue=0))
        setattr(after, name, [max(pair) for pair in pairs])
        added.histograms[name] = merged(added.histograms[name], [max(pair) - pair[0] for pair in pairs])
    after.waiting = before.waiting if count.waiting is None else count.waiting
    after.blocked_keys = before.blocked_keys if count.blocked_keys is None else count.blocked_keys
    return after


def _add_to_totals(using: str, added: Mapping[str, _Counts]) -> None:
    totals = {total.queue_id: total for total in QueueTotal.objects.using(using).filter(queue__in=list(added))}
    for queue, count in added.items():
        total = totals.setdefault(queue, QueueTotal(queue_id=queue, **_ZERO))
        for name in COUNTERS:
            setattr(total, name, getattr(total, name) + count.numbers[name])
        for name in HISTOGRAMS:
            setattr(total, name, merged(getattr(total, name), count.histograms[name]))
    QueueTotal.objects.using(using).bulk_create(
        totals.values(), update_conflicts=True, unique_fields=["queue"], update_fields=[*COUNTERS, *HISTOGRAMS]
    )
