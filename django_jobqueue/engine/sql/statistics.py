"""The statistics of each minute: counted from the jobs, stored, and summed up for charts."""

from __future__ import annotations

from ...states import DEAD, FailureReason, JobState
from ...statistics import BOUNDS
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

_SUMS = ", ".join(f"sum({name})" for name in ("sent", "completed", "failed", "retried"))
_HISTOGRAMS = ", ".join(
    f"ARRAY[{', '.join(f'sum(COALESCE({name}[{place}], 0))' for place in range(1, len(BOUNDS) + 2))}]"
    for name in ("waited", "ran")
)
# Reads the unique index of queue and minute, one queue after the other. The depth of a step is that of its highest
# minute.
STEPS = f"""
SELECT step, {_SUMS.replace("(", "(m.")}, max(m.waiting), max(m.blocked)
FROM (
    SELECT date_bin(%(step)s, minute, %(since)s) AS step, minute, sum(sent) AS sent, sum(completed) AS completed,
        sum(failed) AS failed, sum(retried) AS retried, sum(waiting) AS waiting, sum(blocked_keys) AS blocked
    FROM jobqueue_queueminute WHERE queue_id = ANY(%(queues)s) AND minute >= %(since)s GROUP BY 1, 2
) m GROUP BY step ORDER BY step
"""
TIMES = f"""
SELECT date_bin(%(step)s, minute, %(since)s) AS step, {_HISTOGRAMS}
FROM jobqueue_queueminute WHERE queue_id = ANY(%(queues)s) AND minute >= %(since)s GROUP BY 1 ORDER BY 1
"""
