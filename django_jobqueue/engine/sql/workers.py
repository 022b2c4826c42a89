"""Statements with which a worker process writes about itself and about the jobs it holds."""

from __future__ import annotations

from ...expressions import WORKER_LOCK
from ...states import JobState
from .parts import IS_RUNNING, NOW

# Locks that are held until the session ends: they show other processes that this process lives.
TAKE_SESSION_LOCKS = f"SELECT w::uuid, pg_try_advisory_lock({WORKER_LOCK.format('w')}) FROM unnest(%s::text[]) w"
DROP_SESSION_LOCK = f"SELECT pg_advisory_unlock({WORKER_LOCK.format('%s')})"

# One statement for all processes of a worker; the row of a process that was declared lost is not changed.
BEAT = """
UPDATE jobqueue_worker w SET heartbeat_at = statement_timestamp(), stats = u.stats::jsonb
FROM unnest(%s::uuid[], %s::text[]) u(id, stats) WHERE w.id = u.id AND w.stopped_at IS NULL
RETURNING w.id, w.stopping_at IS NOT NULL
"""

# Rows that another transaction has locked are skipped: the other jobs must not wait for them.
RENEW = f"""
WITH mine AS MATERIALIZED (
    SELECT m.id, u.queue, u.place
    FROM unnest(%s::text[], %s::uuid[], %s::int[], %s::bigint[])
        WITH ORDINALITY u(queue, id, attempt, number, place)
    CROSS JOIN LATERAL (
        SELECT id FROM jobqueue_job WHERE queue_id = u.queue AND id = u.id AND attempt = u.attempt
            AND claim_number = u.number AND state = '{JobState.ACTIVE}'
        LIMIT 1 FOR UPDATE SKIP LOCKED) m)
UPDATE jobqueue_job j SET expire_at = {NOW} + j.expire_in_seconds * interval '1 second',
    heartbeat_at = CASE WHEN j.heartbeat_seconds IS NOT NULL THEN {NOW} ELSE j.heartbeat_at END
FROM mine WHERE j.queue_id = mine.queue AND j.id = mine.id
RETURNING mine.place
"""
PROGRESS = f"""
WITH mine AS MATERIALIZED (
    SELECT m.id, u.queue, u.progress, u.said
    FROM unnest(%s::text[], %s::uuid[], %s::int[], %s::bigint[], %s::float8[], %s::text[])
        u(queue, id, attempt, number, progress, said)
    CROSS JOIN LATERAL (
        SELECT id FROM jobqueue_job WHERE queue_id = u.queue AND id = u.id AND attempt = u.attempt
            AND (u.number IS NULL OR claim_number = u.number) AND {IS_RUNNING}
        LIMIT 1 FOR UPDATE SKIP LOCKED) m)
UPDATE jobqueue_job j SET progress = COALESCE(mine.progress, j.progress),
    progress_text = COALESCE(mine.said, j.progress_text),
    heartbeat_at = CASE WHEN j.heartbeat_seconds IS NOT NULL THEN {NOW} ELSE j.heartbeat_at END
FROM mine WHERE j.queue_id = mine.queue AND j.id = mine.id
"""

# The first eight digits of the name of a WAL file are the timeline, which changes when a standby is promoted.
TIMELINE = f"""
SELECT timeline = here, extract(epoch FROM {NOW} - timeline_at), here
FROM jobqueue_maintenance, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) here
"""
SEE_TIMELINE = f"""
UPDATE jobqueue_maintenance SET timeline = %s, timeline_at = CASE WHEN timeline <> '' THEN {NOW} END
WHERE timeline <> %s
"""
