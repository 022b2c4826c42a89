"""The statistics of each minute: counted from the jobs, stored, and summed up for charts."""

from __future__ import annotations

from ...states import DEAD, FailureReason, JobState
from ...statistics import BOUNDS, COUNTERS, HISTOGRAMS, SPAN
from .parts import IS_BLOCKED_KEY, NOW, listed

TRY_LOCK = "SELECT pg_try_advisory_xact_lock(%s)"
# Each reads only the ranges of the table that were written since, by the BRIN index; see explanation/maintenance.
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

THIS_MINUTE = f"SELECT {_MINUTE.format(NOW)}"
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
# Failed attempts are in the history of their job; the attempt with which a job failed for good is not followed by a
# retry.
RETRIED = f"""
SELECT queue_id, {_MINUTE.format("ended")}, count(*) FROM (
    SELECT j.queue_id, (a->>'ended')::timestamptz AS ended
    FROM jobqueue_job j CROSS JOIN LATERAL jsonb_array_elements(j.attempts) a
    WHERE j.attempt_finished_at >= %(since)s AND a->>'outcome' IN {_FAILURES}
        AND NOT ({_HAS_FAILED} AND (a->>'attempt')::int = j.attempt)) attempts
WHERE {_WITHIN.format("ended")} GROUP BY 1, 2
"""
BLOCKED = f"SELECT queue_id, count(*) FROM jobqueue_job WHERE {IS_BLOCKED_KEY} GROUP BY queue_id"

# Ranges without a summary are read completely.
RANGES = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'jobqueue_job_ranges'::regclass"
WAIT_BRIEFLY = "SET LOCAL lock_timeout = '100ms'"
SUMMARIZE = "SELECT brin_summarize_new_values(%s::regclass)"

FORGET = f"""
DELETE FROM jobqueue_queueminute WHERE id IN (
    SELECT old.id FROM jobqueue_queue q CROSS JOIN LATERAL (
        SELECT m.id FROM jobqueue_queueminute m
        WHERE m.queue_id = q.name AND m.minute < {NOW} - %(days)s * interval '1 day'
        ORDER BY m.minute LIMIT %(most)s) old LIMIT %(most)s)
"""
# The spans of all queues together, and of each queue.
FORGET_SPANS = f"""
DELETE FROM jobqueue_queuespan WHERE id IN (
    SELECT old.id FROM (SELECT name FROM jobqueue_queue UNION ALL SELECT NULL) q CROSS JOIN LATERAL (
        (SELECT s.id FROM jobqueue_queuespan s
        WHERE s.queue_id = q.name AND s.begins_at < {NOW} - %(days)s * interval '1 day'
        ORDER BY s.begins_at LIMIT %(most)s)
        UNION ALL
        (SELECT s.id FROM jobqueue_queuespan s
        WHERE q.name IS NULL AND s.queue_id IS NULL AND s.begins_at < {NOW} - %(days)s * interval '1 day'
        ORDER BY s.begins_at LIMIT %(most)s)) old LIMIT %(most)s)
"""

_COUNTERS = ", ".join(COUNTERS)
_SUMS = ", ".join(f"sum({name}) AS {name}" for name in COUNTERS)
_HISTOGRAMS = ", ".join(
    f"ARRAY[{', '.join(f'sum(COALESCE({name}[{place}], 0))' for place in range(1, len(BOUNDS) + 2))}]::bigint[]"
    f" AS {name}"
    for name in HISTOGRAMS
)
_SPAN = f"interval '{SPAN.total_seconds():.0f} seconds'"
_BEGIN = f"date_bin({_SPAN}, {{}}, 'epoch')"
# Waiting jobs and blocked keys are not added up over time: those of a step are those of its highest minute.
_AT_ONCE = "sum(waiting)::bigint AS waiting, sum(blocked_keys)::bigint AS blocked_keys"
_DEPTHS = "max(waiting) AS waiting, max(blocked_keys) AS blocked_keys"

# Sums up minutes to the spans of each queue, and to the spans of all queues together. A minute of all queues is summed
# up first, because the queues of a span may be at their highest in different minutes.
SUM_UP = f"""
INSERT INTO jobqueue_queuespan AS s (queue_id, begins_at, {_COUNTERS}, waiting, blocked_keys, waited, ran)
SELECT queue_id, {_BEGIN.format("minute")}, {_SUMS}, {_DEPTHS}, {_HISTOGRAMS}
FROM (
    SELECT queue_id, minute, {_SUMS}, {_AT_ONCE}, {_HISTOGRAMS}
    FROM jobqueue_queueminute
    WHERE queue_id = ANY(ARRAY(SELECT name FROM jobqueue_queue))
        AND minute >= {_BEGIN.format("%(first)s")} AND minute < {_BEGIN.format("%(last)s")} + {_SPAN}
    GROUP BY GROUPING SETS ((queue_id, minute), (minute))
) m GROUP BY 1, 2
ON CONFLICT (queue_id, begins_at) DO UPDATE SET
    {", ".join(f"{name} = EXCLUDED.{name}" for name in (*COUNTERS, "waiting", "blocked_keys", *HISTOGRAMS))}
"""

# Read the unique index of queue and time. Minutes are summed up for one queue after the other; spans are stored for one
# queue, or for all.
STEPS_OF_MINUTES = f"""
SELECT date_bin(%(step)s, minute, %(since)s), {_SUMS}, {_DEPTHS}, {_HISTOGRAMS}
FROM (
    SELECT minute, {_SUMS}, {_AT_ONCE}, {_HISTOGRAMS}
    FROM jobqueue_queueminute
    WHERE queue_id = ANY(CASE WHEN %(queue)s::text IS NULL THEN ARRAY(SELECT name FROM jobqueue_queue)
        ELSE ARRAY[%(queue)s::text] END) AND minute >= %(since)s
    GROUP BY 1
) m GROUP BY 1 ORDER BY 1
"""
STEPS_OF_SPANS = f"""
SELECT date_bin(%(step)s, begins_at, %(since)s), {_SUMS}, {_DEPTHS}, {_HISTOGRAMS}
FROM jobqueue_queuespan WHERE {{whose}} AND begins_at >= %(since)s GROUP BY 1 ORDER BY 1
"""
OF_QUEUE, OF_ALL_QUEUES = "queue_id = %(queue)s", "queue_id IS NULL"
