"""Completing jobs, and handing their lanes over."""

from __future__ import annotations

from ...states import JobState, leads_to
from .lanes import ANY_DUE, FIRST_OF_EACH, HEAD_OF_HELD, KEY_HASH, OVERDUE
from .parts import CLAIM_COLUMNS, IS_FETCHABLE, LEAF, NOT_SKIPPED, NOW, claiming, listed
from .session import DURABLE


def _completing(output: str) -> str:
    return f"""state = '{JobState.COMPLETED}', hold = NULL, output = {output}::jsonb, finalized_at = {NOW},
    delete_at = CASE WHEN j.delete_after_seconds > 0 THEN {NOW} + j.delete_after_seconds * interval '1 second' END,
    lease_until = NULL, crashes = 0, error = '', error_summary = NULL, reason = '', fingerprint = ''"""


_TYPES = {"tid": "tid", "id": "uuid", "attempt": "int", "number": "bigint", "output": "text", "key": "text"}


def _claims(*columns: str) -> str:
    """The claims to complete as rows, from one array per column, with their places in the batch."""
    arrays = ", ".join(f"%({name}s)s::{_TYPES[name]}[]" for name in columns)
    return f"unnest({arrays}) WITH ORDINALITY c({', '.join(columns)}, place)"


# In lanes only if no other transaction has locked the key; a later statement finds the next job of each lane.
_IS_OURS = f"""pg_try_advisory_xact_lock({KEY_HASH.format(key="c.key", queue="%(queue)s")})"""


# Completes jobs whose rows are still where their claim wrote them; nearly all are. The rows are not locked before the
# update, because that would cost a sixth more, so it runs with ``session.WAIT_BRIEFLY``. The state must not be a
# constant: the planner would read all running jobs by the index of their state, once per job. The number of the claim
# implies the attempt, because no two fetches draw the same number; so one array less is read.
def _complete_here(claims: str, is_ours: str) -> str:
    return f"""
UPDATE {LEAF} j SET {_completing("u.output")}
FROM (SELECT *, '{JobState.ACTIVE}' AS state, {is_ours} AS ours FROM {claims} OFFSET 0) u
WHERE j.ctid = u.tid AND j.id = u.id AND j.claim_number = u.number AND j.state = u.state AND u.ours
RETURNING u.place, u.state
"""


COMPLETE_HERE = _complete_here(_claims("tid", "id", "number", "output"), "true")
COMPLETE_HERE_LANED = _complete_here(_claims("tid", "id", "number", "output", "key"), _IS_OURS)

# Completes the jobs that the statement above did not. Each row is looked up where its claim wrote it and, because it
# may have been updated since, by the primary key (a LATERAL with a LIMIT cannot be turned into another kind of join).
# Rows that another transaction has locked are skipped, so that one open transaction does not stop a batch.
_IS_CLAIM = f"""id = u.id AND attempt = u.attempt AND (u.number IS NULL OR claim_number = u.number)
            AND state IN {listed(leads_to(JobState.COMPLETED))}"""


def _complete_anywhere(claims: str, is_ours: str) -> str:
    return f"""
WITH u AS MATERIALIZED (SELECT *, {is_ours} AS ours FROM {claims}),
mine AS MATERIALIZED (
    SELECT COALESCE(here.tid, moved.tid) AS tid, COALESCE(here.state, moved.state) AS state, u.output, u.place FROM u
    LEFT JOIN LATERAL (SELECT ctid AS tid, state FROM {LEAF} WHERE ctid = u.tid AND {_IS_CLAIM}
        LIMIT 1 FOR UPDATE SKIP LOCKED) here ON true
    LEFT JOIN LATERAL (SELECT ctid AS tid, state FROM {LEAF} WHERE here.tid IS NULL AND {_IS_CLAIM}
        LIMIT 1 FOR UPDATE SKIP LOCKED) moved ON true
    WHERE u.ours)
UPDATE {LEAF} j SET {_completing("mine.output")}
FROM mine WHERE j.ctid = mine.tid
RETURNING mine.place, mine.state
"""


COMPLETE = _complete_anywhere(_claims("tid", "id", "attempt", "number", "output"), "true")
COMPLETE_LANED = _complete_anywhere(_claims("tid", "id", "attempt", "number", "output", "key"), _IS_OURS)

# Completes one job, found by its primary key, for which no planner settings are needed. If PostgreSQL had to wait for
# the row, it checks the conditions again on the new version of the row.
COMPLETE_ONE = f"""
UPDATE {LEAF} j SET {_completing("%(output)s")}
WHERE id = %(id)s AND attempt = %(attempt)s AND (%(number)s::bigint IS NULL OR claim_number = %(number)s)
    AND state IN {listed(leads_to(JobState.COMPLETED))}
RETURNING {DURABLE}
"""


# Hands lanes over: the next job becomes active in the transaction that ended the job before it, if no job with a higher
# priority waits elsewhere in the queue and no due job of the lane goes first. Only for lanes whose blocking job was
# ended by this transaction: a lane has at most one blocking job, so it need not look for another. Like the completion
# before it, the variant that waits briefly locks no rows first, and both hide the state from the planner.
def _hand_over(locked: str) -> str:
    return f"""
WITH seen AS MATERIALIZED ({FIRST_OF_EACH}),
head AS MATERIALIZED (SELECT key, tid, seq, priority FROM seen WHERE hold IS NULL UNION ALL {HEAD_OF_HELD}),
next AS MATERIALIZED (
    SELECT k.tid FROM head k {locked}
    WHERE k.priority >= COALESCE((
            SELECT priority FROM {LEAF} WHERE queue_id = %(queue)s AND {IS_FETCHABLE}
            ORDER BY priority DESC, position LIMIT 1), -2147483648)
        AND (SELECT paused_at IS NULL FROM jobqueue_queue WHERE name = %(queue)s)
        AND ({ANY_DUE} IS NOT TRUE OR {OVERDUE} IS NULL))
UPDATE {LEAF} j SET {claiming(xmin="pg_snapshot_xmin(pg_current_snapshot())::text::bigint")}
WHERE j.ctid = ANY(ARRAY(SELECT tid FROM next))
    AND j.state = (SELECT '{JobState.CREATED}'::text) AND j.tags @> %(tags)s::text[] AND j.{NOT_SKIPPED}
RETURNING {CLAIM_COLUMNS}
"""


HAND_OVER_HERE = _hand_over("")
HAND_OVER = _hand_over(f"CROSS JOIN LATERAL (SELECT FROM {LEAF} WHERE ctid = k.tid LIMIT 1 FOR UPDATE SKIP LOCKED) l")
