"""Completing jobs, and handing their lanes over."""

from __future__ import annotations

from ...states import JobState, leads_to
from .lanes import ANY_DUE, FIRST_OF_EACH, HEAD_OF_HELD, KEY_HASH, OVERDUE
from .parts import CLAIM_COLUMNS, IS_FETCHABLE, LEAF, NOW, listed
from .session import DURABLE

_COMPLETE = f"""state = '{JobState.COMPLETED}', hold = NULL, output = {{output}}::jsonb, finalized_at = {NOW},
    delete_at = CASE WHEN j.delete_after_seconds > 0 THEN {NOW} + j.delete_after_seconds * interval '1 second' END,
    lease_until = NULL, crashes = 0, error = '', reason = '', fingerprint = ''"""
_CLAIMS = """SELECT * FROM unnest(%s::tid[], %s::uuid[], %s::int[], %s::bigint[], %s::text[])
    WITH ORDINALITY c(tid, id, attempt, number, output, place)"""
# In lanes, only where no other transaction has the key; a later statement finds the next job of each lane.
_CLAIMS_LANED = f"""SELECT *, pg_try_advisory_xact_lock({KEY_HASH.format(key="c.key", queue="%s")}) AS ours
    FROM unnest(%s::tid[], %s::uuid[], %s::int[], %s::bigint[], %s::text[], %s::text[])
    WITH ORDINALITY c(tid, id, attempt, number, output, key, place)"""
# Completes each job where its claim put the row, in the state it has had since; nearly all are still there. The rows
# are not locked before the update, which would cost a sixth more, so it runs with ``session.WAIT_BRIEFLY``. The state
# must not be a constant: the planner would read all running jobs by the index of their state, once per job. The number
# of the claim implies the attempt, because no two fetches draw the same; so one array less is read.
_COMPLETE_HERE = f"""
UPDATE {LEAF} j SET {_COMPLETE.format(output="u.output")}
FROM (SELECT *, '{JobState.ACTIVE}' AS state FROM ({{claims}}) claims OFFSET 0) u
WHERE j.ctid = u.tid AND j.id = u.id AND j.claim_number = u.number AND j.state = u.state AND {{ours}}
RETURNING u.place, u.state
"""


def _without_attempts(claims: str) -> str:
    return claims.replace("%s::int[], ", "").replace("attempt, ", "")


COMPLETE_HERE = _COMPLETE_HERE.format(claims=_without_attempts(_CLAIMS), ours="true")
COMPLETE_HERE_LANED = _COMPLETE_HERE.format(claims=_without_attempts(_CLAIMS_LANED), ours="u.ours")

# What the statement above left: each job is looked for where its claim put the row, and, because the row may have been
# written since, by a probe of the primary key (a LATERAL with a LIMIT cannot be turned into a join of another kind). A
# row that another transaction has locked is skipped, so that one open transaction does not stall a batch.
_IS_CLAIM = f"""id = u.id AND attempt = u.attempt AND (u.number IS NULL OR claim_number = u.number)
            AND state IN {listed(leads_to(JobState.COMPLETED))}"""
_COMPLETE_ANYWHERE = f"""
WITH u AS MATERIALIZED ({{claims}}),
mine AS MATERIALIZED (
    SELECT COALESCE(here.tid, moved.tid) AS tid, COALESCE(here.state, moved.state) AS state, u.output, u.place FROM u
    LEFT JOIN LATERAL (SELECT ctid AS tid, state FROM {LEAF} WHERE ctid = u.tid AND {_IS_CLAIM}
        LIMIT 1 FOR UPDATE SKIP LOCKED) here ON true
    LEFT JOIN LATERAL (SELECT ctid AS tid, state FROM {LEAF} WHERE here.tid IS NULL AND {_IS_CLAIM}
        LIMIT 1 FOR UPDATE SKIP LOCKED) moved ON true
    WHERE {{ours}})
UPDATE {LEAF} j SET {_COMPLETE.format(output="mine.output")}
FROM mine WHERE j.ctid = mine.tid
RETURNING mine.place, mine.state
"""
COMPLETE = _COMPLETE_ANYWHERE.format(claims=_CLAIMS, ours="true")
COMPLETE_LANED = _COMPLETE_ANYWHERE.format(claims=_CLAIMS_LANED, ours="u.ours")

# One job, found by its primary key, which needs no help from the planner's settings. A row that had to be waited for is
# looked at again by PostgreSQL itself, as it is then.
COMPLETE_ONE = f"""
UPDATE {LEAF} j SET {_COMPLETE.format(output="%s")}
WHERE id = %s AND attempt = %s AND (%s::bigint IS NULL OR claim_number = %s)
    AND state IN {listed(leads_to(JobState.COMPLETED))}
RETURNING {DURABLE}
"""

# Hands the lane over: the next job becomes active in the transaction that ended the one before it, if no job with a
# higher priority waits elsewhere in the queue and no due job of the lane goes first. Only for lanes whose blocking job
# was ended by this transaction: a lane has one at most, so there is no need to look for another. Like the completion
# before it, it locks no rows first where it waits briefly, and hides the state from the planner.
_HAND_OVER = f"""
WITH seen AS MATERIALIZED ({FIRST_OF_EACH}),
head AS MATERIALIZED (SELECT key, tid, seq, priority FROM seen WHERE hold IS NULL UNION ALL {HEAD_OF_HELD}),
next AS MATERIALIZED (
    SELECT k.tid FROM head k {{locked}}
    WHERE k.priority >= COALESCE((
            SELECT priority FROM {LEAF} WHERE queue_id = %(queue)s AND {IS_FETCHABLE}
            ORDER BY priority DESC, position LIMIT 1), -2147483648)
        AND (SELECT paused_at IS NULL FROM jobqueue_queue WHERE name = %(queue)s)
        AND ({ANY_DUE} IS NOT TRUE OR {OVERDUE} IS NULL))
UPDATE {LEAF} j
SET state = '{JobState.ACTIVE}', hold = NULL, attempt = j.attempt + 1, assignee = %(worker)s,
    incarnation = %(incarnation)s, claim_number = %(number)s, assigned_at = {NOW},
    started_at = COALESCE(j.started_at, {NOW}),
    expire_at = {NOW} + j.expire_in_seconds * interval '1 second',
    heartbeat_at = CASE WHEN j.heartbeat_seconds IS NOT NULL THEN {NOW} END, lease_until = NULL,
    progress = NULL, progress_text = '',
    claim_xmin = COALESCE(j.claim_xmin, pg_snapshot_xmin(pg_current_snapshot())::text::bigint)
WHERE j.ctid = ANY(ARRAY(SELECT tid FROM next))
    AND j.state = (SELECT '{JobState.CREATED}'::text) AND j.tags @> %(tags)s::text[]
RETURNING {CLAIM_COLUMNS}
"""
HAND_OVER_HERE = _HAND_OVER.format(locked="")
HAND_OVER = _HAND_OVER.format(
    locked=f"CROSS JOIN LATERAL (SELECT FROM {LEAF} WHERE ctid = k.tid LIMIT 1 FOR UPDATE SKIP LOCKED) l"
)
