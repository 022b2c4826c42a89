"""All changes of state except the claim and the completion."""

from __future__ import annotations

from ...expressions import NEXT_SEQ
from ...policies import LANED, ORDERED, QueuePolicy
from ...states import DEAD, ELIGIBLE, FINAL, RETRYING, Hold, JobState
from .parts import IS_BLOCKED_KEY, NOW, listed
from .session import DURABLE

# The columns of a change and their types: one array for each.
CHANGE = {
    "id": "uuid", "queue": "text", "state": "text", "delay": "float8", "charge": "int", "more_retries": "int",
    "behind": "bool", "crashes": "int", "error": "text", "error_summary": "text", "shortened": "text",
    "reason": "text", "note": "text", "data": "text", "fingerprint": "text", "outcome": "text",
}  # fmt: skip
_CHANGES = ", ".join(f"%({name})s::{type}[]" for name, type in CHANGE.items())

# All changes of state except the claim and the completion, for rows that are locked already; values that do not change
# are null. An attempt that did not succeed is appended to the job's history, of which the last fifty are kept. New
# positions are drawn before the join, in the order of the changes, because the join may visit the rows in any order.
MOVE = f"""
WITH u AS MATERIALIZED (
    SELECT *, CASE WHEN behind THEN {NEXT_SEQ} END AS position
    FROM unnest({_CHANGES}) c({", ".join(CHANGE)}))
UPDATE jobqueue_job j
SET state = u.state,
    moved_xid = pg_current_xact_id()::text::bigint,
    hold = CASE WHEN u.state NOT IN {listed(ELIGIBLE)} THEN NULL WHEN u.delay > 0 THEN '{Hold.UNTIL}' END,
    start_after = COALESCE({NOW} + u.delay * interval '1 second', j.start_after),
    retry_count = j.retry_count + u.charge,
    retry_limit = j.retry_limit + u.more_retries,
    last_retry_at = CASE WHEN u.charge > 0 THEN {NOW} ELSE j.last_retry_at END,
    attempt_finished_at = CASE WHEN u.outcome IS NULL THEN j.attempt_finished_at ELSE {NOW} END,
    cancel_requested_at = CASE WHEN u.state = '{JobState.CANCELLING}' THEN COALESCE(j.cancel_requested_at, {NOW})
        ELSE j.cancel_requested_at END,
    finalized_at = CASE WHEN u.state IN {listed(FINAL)} THEN {NOW} END,
    delete_at = CASE WHEN u.state NOT IN {listed(FINAL)} OR (u.state IN {listed(DEAD)} AND j.policy = '{ORDERED}')
            THEN NULL
        WHEN u.state IN {listed(DEAD)} AND j.delete_failed_after_seconds > 0
            THEN {NOW} + j.delete_failed_after_seconds * interval '1 second'
        WHEN u.state NOT IN {listed(DEAD)} AND j.delete_after_seconds > 0
            THEN {NOW} + j.delete_after_seconds * interval '1 second' END,
    lease_until = NULL, grouped = NULL,
    position = COALESCE(u.position, j.position),
    crashes = COALESCE(u.crashes, j.crashes),
    error = COALESCE(u.error, j.error),
    error_summary = CASE WHEN u.error IS NULL THEN j.error_summary ELSE u.error_summary END,
    reason = COALESCE(u.reason, j.reason),
    note = COALESCE(u.note, j.note),
    data = COALESCE(u.data::jsonb, j.data),
    fingerprint = COALESCE(u.fingerprint, j.fingerprint),
    attempts = CASE WHEN u.outcome IS NULL THEN j.attempts ELSE
        (CASE WHEN jsonb_array_length(j.attempts) >= 50 THEN j.attempts - 0 ELSE j.attempts END)
        || jsonb_build_object('attempt', j.attempt, 'worker', j.assignee, 'started', j.assigned_at, 'ended', {NOW},
            'outcome', u.outcome, 'error', COALESCE(u.shortened, u.error), 'error_summary', u.error_summary,
            'fingerprint', COALESCE(u.fingerprint, '')) END
FROM u WHERE j.id = u.id AND j.queue_id = u.queue
RETURNING j.id, j.start_after, {DURABLE}
"""

# A copy of a job for the dead-letter queue, if that queue exists: with the job's own retry and retention options, with
# the reason why the job failed, and with its key only if that queue is ordered.
DEAD_LETTER = f"""
INSERT INTO jobqueue_job (id, queue_id, policy, name, priority, group_key, tags, data, retry_limit, retry_delay,
    retry_backoff, retry_delay_max, expire_in_seconds, heartbeat_seconds, retention_seconds, delete_after_seconds,
    delete_failed_after_seconds, singleton_key, source_id, source_queue, source_key, carried, error_summary)
SELECT u.copy, d.name, d.policy, j.name, j.priority, j.group_key, j.tags, j.data, j.retry_limit, j.retry_delay,
    j.retry_backoff, j.retry_delay_max, j.expire_in_seconds, j.heartbeat_seconds, j.retention_seconds,
    j.delete_after_seconds, j.delete_failed_after_seconds,
    CASE WHEN d.policy = '{ORDERED}' THEN COALESCE(NULLIF(j.singleton_key, ''), j.queue_id) ELSE '' END,
    j.id, j.queue_id, j.singleton_key, j.carried, j.error_summary
FROM unnest(%(ids)s::uuid[], %(copies)s::uuid[]) u(id, copy)
JOIN jobqueue_job j ON j.id = u.id
JOIN jobqueue_queue q ON q.name = j.queue_id
JOIN jobqueue_queue d ON d.name = q.dead_letter_id
ON CONFLICT DO NOTHING
RETURNING queue_id, source_id
"""

# A job in another queue for each of these dead letters, in their order, with everything that the letter has. The rows
# of the letters are locked. No row is returned if a job with the id exists, or if the policy's slot is taken.
REDRIVE = """
INSERT INTO jobqueue_job (id, queue_id, policy, name, priority, group_key, tags, data, retry_limit, retry_delay,
    retry_backoff, retry_delay_max, expire_in_seconds, heartbeat_seconds, retention_seconds, delete_after_seconds,
    delete_failed_after_seconds, singleton_key, source_id, source_queue, source_key, carried)
SELECT u.id, q.name, q.policy, j.name, j.priority, j.group_key, j.tags, j.data, j.retry_limit, j.retry_delay,
    j.retry_backoff, j.retry_delay_max, j.expire_in_seconds, j.heartbeat_seconds, j.retention_seconds,
    j.delete_after_seconds, j.delete_failed_after_seconds, u.key, u.source_id, u.source_queue, u.key, j.carried
FROM unnest(%(letters)s::uuid[], %(ids)s::uuid[], %(queues)s::text[], %(keys)s::text[], %(source_ids)s::uuid[],
    %(source_queues)s::text[]) WITH ORDINALITY u(letter, id, queue, key, source_id, source_queue, place)
JOIN jobqueue_job j ON j.id = u.letter
JOIN jobqueue_queue q ON q.name = u.queue
ORDER BY u.place
ON CONFLICT DO NOTHING
RETURNING id, queue_id
"""

# The job of the same key on a stately queue that already waits for its retry.
RETRYING_BESIDE = f"""
SELECT j.id, o.id FROM unnest(%(ids)s::uuid[]) u(id) JOIN jobqueue_job j ON j.id = u.id
JOIN jobqueue_job o ON o.queue_id = j.queue_id AND o.policy = '{QueuePolicy.STATELY}' AND o.id <> j.id
    AND o.singleton_key = j.singleton_key AND o.state IN {listed(RETRYING)}
"""

# Also updates the time since when the job could have started, for statistics and the order audit.
RESCHEDULE = f"""
UPDATE jobqueue_job SET start_after = %(moment)s,
    first_start_after = CASE WHEN state = '{JobState.CREATED}' THEN %(moment)s ELSE first_start_after END,
    hold = CASE WHEN %(moment)s::timestamptz > {NOW} THEN '{Hold.UNTIL}' END
WHERE id = %(id)s AND queue_id = %(queue)s
"""

# Counts the deleted jobs by lane, because waiting jobs of these lanes may be fetchable now.
PURGE = f"""
WITH gone AS (DELETE FROM jobqueue_job WHERE queue_id = %(queue)s AND (%(state)s::text IS NULL OR state = %(state)s)
    RETURNING policy, singleton_key, {IS_BLOCKED_KEY} AS blocked)
SELECT policy, CASE WHEN policy IN {listed(LANED)} THEN singleton_key ELSE '' END, bool_or(blocked), count(*)
FROM gone GROUP BY 1, 2
"""
