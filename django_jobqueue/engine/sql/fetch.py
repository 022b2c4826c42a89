"""Finding candidates and claiming them."""

from __future__ import annotations

from ...states import Hold, JobState
from .parts import CLAIM_COLUMNS, IS_FETCHABLE, LEAF, NOT_SKIPPED, NOW, claiming

LOOK_AT_QUEUE = """
SELECT policy, partition, paused_at IS NOT NULL, current_setting('transaction_isolation')
FROM jobqueue_queue WHERE name = %(queue)s
"""
# Like LOOK_AT_QUEUE, but sent together with a claim; also tells whether a lease has ended.
LOOK_BESIDE = f"""
SELECT policy, partition, paused_at IS NOT NULL, (SELECT lease_until <= {NOW} FROM {LEAF}
    WHERE queue_id = q.name AND state = '{JobState.ACTIVE}' AND lease_until IS NOT NULL ORDER BY lease_until LIMIT 1)
FROM jobqueue_queue q WHERE name = %(queue)s
"""

# Whether a hold has ended and whether a lease has ended, by the earliest of each, which an index finds. With EXISTS the
# planner would read the table.
LOOK_AT_TIMES = f"""
SELECT (SELECT start_after <= {NOW} FROM {LEAF} WHERE queue_id = %(queue)s AND hold = '{Hold.UNTIL}'
        ORDER BY start_after LIMIT 1),
    (SELECT lease_until <= {NOW} FROM {LEAF}
        WHERE queue_id = %(queue)s AND state = '{JobState.ACTIVE}' AND lease_until IS NOT NULL
        ORDER BY lease_until LIMIT 1)
"""

RELEASE_DUE = f"""
WITH due AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE queue_id = %(queue)s AND hold = '{Hold.UNTIL}' AND start_after <= {NOW}
    ORDER BY start_after LIMIT %(most)s FOR UPDATE SKIP LOCKED)
UPDATE {LEAF} j SET hold = NULL FROM due WHERE j.ctid = due.tid
"""

# For workers that read all queues: the queues by the age of their first fetchable job. Queues without fetchable jobs
# are included, because a delayed job may have become due.
QUEUES_BY_AGE = f"""
SELECT q.name FROM jobqueue_queue q LEFT JOIN LATERAL (
    SELECT position FROM jobqueue_job WHERE queue_id = q.name AND {IS_FETCHABLE}
    ORDER BY priority DESC, position LIMIT 1) front ON true
WHERE q.paused_at IS NULL ORDER BY front.position NULLS LAST, q.name
"""

# Whether the queue still has the policy and partition that the caller knows, and is not paused. With LIMIT it is
# evaluated only once.
_IS_OPEN = """(SELECT true FROM jobqueue_queue WHERE name = %(queue)s AND policy = %(policy)s
            AND partition = %(partition)s AND paused_at IS NULL LIMIT 1)"""


def _candidates(bounds: str, limit: str) -> str:
    """The SQL of ``Job.objects.in_queue(queue).fetchable().in_order().select_for_update(skip_locked=True)``.

    A test compares the two. The SQL is written out, because then candidates are claimed in one round trip, and because
    Django took longer to compose the statement than PostgreSQL to run it.
    """
    return f"""SELECT ctid AS tid FROM {LEAF}
        WHERE queue_id = %(queue)s AND {IS_FETCHABLE}{bounds} AND {NOT_SKIPPED} AND {_IS_OPEN}
        ORDER BY priority DESC, position LIMIT {limit} FOR UPDATE SKIP LOCKED"""


# Jobs without lanes are selected and claimed by one statement. Rows are found again by ctid and not by id: statistics
# about the states of a queue are never up to date, and a planner that expects no eligible rows reads the whole table
# for a join by id. A locked row cannot move, so its ctid does not change.
CLAIM_FRONT = f"""
WITH picked AS MATERIALIZED (
        {_candidates("", "%(limit)s")})
UPDATE {LEAF} j SET {claiming(xmin="NULL")}
WHERE j.ctid = ANY(ARRAY(SELECT tid FROM picked))
RETURNING {CLAIM_COLUMNS}
"""

# Like CLAIM_FRONT, but begins where the last fetch ended, so that rows of finished jobs in front are not read again.
CLAIM_BEYOND = f"""
WITH above AS MATERIALIZED (
        {_candidates(" AND priority > %(priority)s", "%(limit)s")}),
within AS MATERIALIZED (
        {
    _candidates(
        " AND priority = %(priority)s AND position > %(position)s", "(%(limit)s - (SELECT count(*) FROM above))"
    )
}),
picked AS MATERIALIZED (TABLE above UNION ALL TABLE within)
UPDATE {LEAF} j SET {claiming(xmin="NULL")}
WHERE j.ctid = ANY(ARRAY(SELECT tid FROM picked))
RETURNING {CLAIM_COLUMNS}
"""


def _heads(bounds: str) -> str:
    return f"""
SELECT ctid, id, singleton_key, state, seq, priority, position FROM {LEAF}
WHERE queue_id = %(queue)s AND {IS_FETCHABLE}{bounds} AND singleton_key <> ALL(%(without)s::text[]) AND {NOT_SKIPPED}
    AND {_IS_OPEN}
ORDER BY priority DESC, position LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""


# Jobs that may be heads of lanes, locked before they are judged. For candidates with tags the ORM composes this
# statement, and a test compares the two. It is written out, because a worker runs it for each batch: Django took 1.0
# ms to compose it, compared to 0.5 ms for the whole round trip, and a job of an ordered queue took 1.09 times as long.
HEADS = _heads("")
HEADS_ABOVE = _heads(" AND priority > %(priority)s")
HEADS_WITHIN = _heads(" AND priority = %(priority)s AND position > %(position)s")
HEADS_BELOW = _heads(" AND (priority < %(priority)s OR (position > %(position)s AND priority = %(priority)s))")

CLAIM = f"""
UPDATE {LEAF} j SET {claiming(xmin="%(xmin)s")}
WHERE j.ctid = ANY(%(tids)s::tid[])
RETURNING {CLAIM_COLUMNS}
"""

# Claims the rows of each group in order, up to the first that another transaction has locked or claimed: a fetch
# without grouping does not lock the group.
CLAIM_GROUPED = f"""
WITH picked AS MATERIALIZED (
    SELECT u.key, u.place, p.tid
    FROM unnest(%(keys)s::text[], %(places)s::int[], %(tids)s::tid[]) u(key, place, tid)
    LEFT JOIN LATERAL (
        SELECT ctid AS tid FROM {LEAF} WHERE ctid = u.tid AND {IS_FETCHABLE} LIMIT 1 FOR UPDATE SKIP LOCKED) p ON true),
going AS MATERIALIZED (
    SELECT tid FROM (
        SELECT tid, bool_and(tid IS NOT NULL) OVER (PARTITION BY key ORDER BY place) AS goes FROM picked) cut
    WHERE goes)
UPDATE {LEAF} j SET {claiming(xmin="NULL")}, grouped = true
FROM going WHERE j.ctid = going.tid
RETURNING {CLAIM_COLUMNS}
"""
