"""Finding candidates and claiming them."""

from __future__ import annotations

from ...states import Hold, JobState
from .parts import CLAIM_COLUMNS, IS_FETCHABLE, LEAF, NOW

LOOK_AT_QUEUE = """
SELECT policy, partition, paused_at IS NOT NULL, current_setting('transaction_isolation')
FROM jobqueue_queue WHERE name = %s
"""
# The same beside a claim, with whether a lease ran out.
LOOK_BESIDE = f"""
SELECT policy, partition, paused_at IS NOT NULL, (SELECT lease_until <= {NOW} FROM {LEAF}
    WHERE queue_id = q.name AND state = '{JobState.ACTIVE}' AND lease_until IS NOT NULL ORDER BY lease_until LIMIT 1)
FROM jobqueue_queue q WHERE name = %s
"""

# The earliest of each, by the index that has it: asked whether one exists, the planner would read the table for it.
LOOK_AT_TIMES = f"""
SELECT (SELECT start_after <= {NOW} FROM {LEAF} WHERE queue_id = %s AND hold = '{Hold.UNTIL}'
        ORDER BY start_after LIMIT 1),
    (SELECT lease_until <= {NOW} FROM {LEAF}
        WHERE queue_id = %s AND state = '{JobState.ACTIVE}' AND lease_until IS NOT NULL
        ORDER BY lease_until LIMIT 1)
"""

RELEASE_DUE = f"""
WITH due AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE queue_id = %s AND hold = '{Hold.UNTIL}' AND start_after <= {NOW}
    ORDER BY start_after LIMIT %s FOR UPDATE SKIP LOCKED)
UPDATE {LEAF} j SET hold = NULL FROM due WHERE j.ctid = due.tid
"""

# For workers that read all queues: ordered by the age of the job in front. Queues without one are included, because a
# delayed job may have become due.
QUEUES_BY_AGE = f"""
SELECT q.name FROM jobqueue_queue q LEFT JOIN LATERAL (
    SELECT position FROM jobqueue_job WHERE queue_id = q.name AND {IS_FETCHABLE}
    ORDER BY priority DESC, position LIMIT 1) front ON true
WHERE q.paused_at IS NULL ORDER BY front.position NULLS LAST, q.name
"""

CANDIDATE = f"{LEAF}.ctid AS tid, id, singleton_key, state, seq, priority, position"

# First a bounded look along the order, then the index of tags: each alone would be slow where the other is quick
# (many jobs with other tags in front; many jobs with these tags in all). ``queue_id || ''`` keeps the planner from
# reading along the queue again instead.
TAGGED_IN_FRONT = f"""
WITH front AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF} WHERE queue_id = %s AND {IS_FETCHABLE}
    ORDER BY priority DESC, position LIMIT %s)
SELECT {CANDIDATE} FROM front JOIN {LEAF} ON {LEAF}.ctid = front.tid
WHERE {IS_FETCHABLE} AND tags @> %s::text[] AND NOT singleton_key = ANY(%s::text[])
ORDER BY priority DESC, position LIMIT %s FOR UPDATE OF {LEAF} SKIP LOCKED
"""
TAGGED = f"""
WITH tagged AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE {IS_FETCHABLE} AND tags @> %s::text[] AND NOT tags = '{{}}' AND queue_id || '' = %s)
SELECT {CANDIDATE} FROM tagged JOIN {LEAF} ON {LEAF}.ctid = tagged.tid
WHERE {IS_FETCHABLE} AND NOT id = ANY(%s::uuid[]) AND NOT singleton_key = ANY(%s::text[])
    AND (priority, -position) < (%s, %s)
ORDER BY priority DESC, position LIMIT %s FOR UPDATE OF {LEAF} SKIP LOCKED
"""

_CLAIM = f"""
SET state = '{JobState.ACTIVE}', hold = NULL, attempt = j.attempt + 1, assignee = %s, incarnation = %s,
    claim_number = %s, assigned_at = {NOW}, started_at = COALESCE(j.started_at, {NOW}),
    expire_at = {NOW} + j.expire_in_seconds * interval '1 second',
    heartbeat_at = CASE WHEN j.heartbeat_seconds IS NOT NULL THEN {NOW} END,
    lease_until = {NOW} + %s * interval '1 second',
    progress = NULL, progress_text = '',
    claim_xmin = COALESCE(j.claim_xmin, {{xmin}})
"""

# Jobs without lanes are picked and claimed by one statement; {candidates} comes from the ORM and locks the rows. They
# are found again by ctid and not by id: statistics about the states of a queue are never right, and a planner that
# expects no eligible rows reads the whole table for a join by id. A locked row cannot move, so its ctid stays the same.
PICK_AND_CLAIM = f"""
WITH {{candidates}}
UPDATE {LEAF} j {_CLAIM.format(xmin="NULL")}
WHERE j.ctid = ANY(ARRAY(SELECT tid FROM picked))
RETURNING {CLAIM_COLUMNS}
"""

CLAIM = f"""
UPDATE {LEAF} j {_CLAIM.format(xmin="%s")}
WHERE j.ctid = ANY(%s::tid[])
RETURNING {CLAIM_COLUMNS}
"""

# Claims the rows of each group in their order, up to the first that another transaction has locked or claimed: a fetch
# without grouping does not take the lock of the group.
CLAIM_GROUPED = f"""
WITH picked AS MATERIALIZED (
    SELECT u.key, u.place, p.tid FROM unnest(%s::text[], %s::int[], %s::tid[]) u(key, place, tid)
    LEFT JOIN LATERAL (
        SELECT ctid AS tid FROM {LEAF} WHERE ctid = u.tid AND {IS_FETCHABLE} LIMIT 1 FOR UPDATE SKIP LOCKED) p ON true),
going AS MATERIALIZED (
    SELECT tid FROM (
        SELECT tid, bool_and(tid IS NOT NULL) OVER (PARTITION BY key ORDER BY place) AS goes FROM picked) cut
    WHERE goes)
UPDATE {LEAF} j {_CLAIM.format(xmin="NULL")}, grouped = true
FROM going WHERE j.ctid = going.tid
RETURNING {CLAIM_COLUMNS}
"""
