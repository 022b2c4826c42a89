"""Statements of the housekeeping process: deleting old rows, and finding stranded lanes."""

from __future__ import annotations

from ...states import FINAL, Hold
from .lanes import FIRST_NOT_DUE, IS_BLOCKED, IS_PENDING, lowest
from .parts import IN_LANE, IS_BLOCKING, IS_FETCHABLE, IS_LANE, IS_RUNNING, IS_UNTIL, LEAF, NOW, listed

# The cost of a statement that runs every minute must depend on the rows to change, not on all rows: each of these reads
# an index from the place where rows can be due. The queues with such rows are found by skipping from name to name in an
# index, because a queue may be deleted while a slow transaction sends a job to it.
QUEUES_WITH = """
WITH RECURSIVE q(name) AS (
    (SELECT queue_id FROM jobqueue_job WHERE {which} ORDER BY queue_id LIMIT 1)
    UNION ALL
    SELECT (SELECT queue_id FROM jobqueue_job WHERE {which} AND queue_id > q.name ORDER BY queue_id LIMIT 1)
    FROM q WHERE q.name IS NOT NULL)
SELECT name FROM q WHERE name IS NOT NULL
"""

# Deletes ended jobs that were kept long enough. These rows block no lane and no job waits for them, so no key is
# locked. ``delete_at`` is empty for jobs that failed for good on an ordered queue; it is checked nevertheless that they
# do not block. Each batch begins where the one before it ended, because deleted rows stay in the index while an old
# transaction is open.
DELETE_OLD = f"""
WITH old AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE queue_id = %(queue)s AND delete_at >= %(since)s::timestamptz AND delete_at <= {NOW}
        AND state IN {listed(FINAL)} AND NOT ({IS_BLOCKING})
    ORDER BY delete_at LIMIT %(most)s FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM {LEAF} j USING old WHERE j.ctid = old.tid RETURNING j.delete_at)
SELECT count(*), max(delete_at)::text FROM gone
"""

# Deletes jobs that the archive has verified. They are found by id and by the time each ended: a job that was retried
# meanwhile stays. Like the rows above, these block no lane, so no key is locked.
DELETE_ARCHIVED = f"""
WITH archived AS MATERIALIZED (
    SELECT m.tid FROM unnest(%(ids)s::uuid[], %(ended)s::timestamptz[]) u(id, ended)
    CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM {LEAF}
        WHERE id = u.id AND queue_id = %(queue)s AND finalized_at = u.ended
            AND state IN {listed(FINAL)} AND NOT ({IS_BLOCKING})
        LIMIT 1 FOR UPDATE SKIP LOCKED) m)
DELETE FROM {LEAF} j USING archived WHERE j.ctid = archived.tid
"""

# No index contains the time for which each waiting job is kept, and one more index would slow down every send. So they
# are read, a bounded number at a time, by the index of the fetch, which begins with the oldest jobs of each priority.
_KEPT_LONG_ENOUGH = f"GREATEST(created_at, start_after) + retention_seconds * interval '1 second' <= {NOW}"
_FETCHABLE_FROM = f"""SELECT id, priority, position, {_KEPT_LONG_ENOUGH} AS is_old FROM {LEAF}
        WHERE queue_id = %(queue)s AND {IS_FETCHABLE} AND {{}} ORDER BY priority DESC, position LIMIT %(most)s"""
# Two ranges and not one OR: with OR all rows from the beginning of the queue would be read and filtered.
OLD_AMONG_FETCHABLE = f"""
WITH seen AS MATERIALIZED (
    SELECT * FROM (
        ({_FETCHABLE_FROM.format("priority = %(priority)s AND position > %(position)s")})
        UNION ALL
        ({_FETCHABLE_FROM.format("priority < %(priority)s")})) both_ranges
    LIMIT %(most)s)
SELECT count(*), (SELECT ARRAY[priority, position] FROM seen ORDER BY priority, position DESC LIMIT 1),
    COALESCE(array_agg(id) FILTER (WHERE is_old), '{{}}'::uuid[])
FROM seen
"""
OLD_AMONG_OVERDUE = f"""
SELECT id FROM {LEAF}
WHERE queue_id = %(queue)s AND {IS_UNTIL} AND start_after <= {NOW} AND {_KEPT_LONG_ENOUGH}
ORDER BY start_after LIMIT %(most)s
"""

# The invariant of lanes: a job on hold for its lane has a job ahead of it; which states count depends on the policy.
# Lanes are checked one by one, by skipping from key to key in the index, so that the cost depends on the number of
# lanes and not of jobs.
_LANES = f"""
WITH RECURSIVE k(key, place) AS (
    (SELECT singleton_key, 1 FROM {LEAF} WHERE queue_id = %(queue)s AND {{which}} AND singleton_key {{beyond}} %(after)s
        ORDER BY singleton_key LIMIT 1)
    UNION ALL
    SELECT (SELECT singleton_key FROM {LEAF} WHERE queue_id = %(queue)s AND {{which}} AND singleton_key > k.key
        ORDER BY singleton_key LIMIT 1), k.place + 1
    FROM k WHERE k.key IS NOT NULL AND k.place < %(most)s)"""
HAS_LANE_IN_ORDER = IN_LANE
STRANDED_IN_ORDER = f"""{_LANES.replace("{which}", HAS_LANE_IN_ORDER)}
SELECT count(*), max(k.key), COALESCE(array_agg(k.key) FILTER (WHERE CASE
    WHEN held.seq IS NULL OR {IS_BLOCKED} IS NOT NULL OR ({lowest("IS NULL")}) IS NOT NULL THEN false
    ELSE COALESCE(held.seq < {FIRST_NOT_DUE}, true) AND {IS_PENDING} IS NULL END),
    '{{{{}}}}'::text[])
FROM k LEFT JOIN LATERAL ({lowest(f"= '{Hold.LANE}'")}) held ON true WHERE k.key IS NOT NULL
"""

# Only the index of the fetch shows whether a job of the key is fetchable, and it is not ordered by key. So in queues
# with more fetchable jobs than this, lanes are not checked. They need not be, because such a queue is not stranded.
_JUDGED = 50_000
HAS_LANE_OF_ONE = f"policy = '{{policy}}' AND {IS_LANE}"
STRANDED_OF_ONE = f"""{_LANES.replace("{which}", HAS_LANE_OF_ONE)},
fetchable AS MATERIALIZED (
    SELECT singleton_key AS key FROM {LEAF} WHERE queue_id = %(queue)s AND {IS_FETCHABLE} LIMIT {_JUDGED + 1})
SELECT count(*), max(k.key), COALESCE(array_agg(k.key) FILTER (WHERE
    (SELECT true FROM {LEAF} WHERE queue_id = %(queue)s AND policy = '{{policy}}' AND singleton_key = k.key
        AND {IS_RUNNING} LIMIT 1) IS NULL
    AND (SELECT count(*) FROM fetchable) <= {_JUDGED} AND k.key NOT IN (SELECT key FROM fetchable)
    AND {IS_PENDING} IS NULL), '{{{{}}}}'::text[])
FROM k WHERE k.key IS NOT NULL
"""

# Deletes the rows of sent files that have not been seen again for this many days.
FORGET_SENT_ROWS = f"""
DELETE FROM jobqueue_sentrow WHERE id IN (
    SELECT id FROM jobqueue_sentrow WHERE seen_at < {NOW} - %s * interval '1 day' ORDER BY seen_at LIMIT %s)
"""

# Only one of all processes does a pass of maintenance at a time.
LEASE_SECONDS = 60  # renewed before each step; when a process dies in a pass, the others wait that long
# A time too far in the future was written before the database's clock was put back, and is ignored.
FREE_PASS = f"""
SELECT id FROM jobqueue_maintenance CROSS JOIN statement_timestamp() now
WHERE (lease_until BETWEEN now AND now + interval '{2 * LEASE_SECONDS} seconds') IS NOT TRUE
    AND (began_at BETWEEN now - %s * interval '1 second' AND now) IS NOT TRUE
FOR UPDATE SKIP LOCKED
"""
ENSURE_ROW = "INSERT INTO jobqueue_maintenance (id, places, report) VALUES (%s, '{}', '{}') ON CONFLICT DO NOTHING"
