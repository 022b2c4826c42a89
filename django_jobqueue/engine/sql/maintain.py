"""What the housekeeping process looks for: what is old, and lanes that are stranded."""

from __future__ import annotations

from ...states import FINAL, Hold
from .lanes import FIRST_NOT_DUE, IS_BLOCKED, IS_PENDING, lowest
from .parts import IN_LANE, IS_BLOCKING, IS_FETCHABLE, IS_LANE, IS_RUNNING, IS_UNTIL, LEAF, NOW, listed

# What comes once a minute must cost what there is to do, not what there is: each of these walks an index from the place
# where something can be due. The queues that have such rows are found by leaping from name to name, because a queue
# may be gone while a job of it, sent by a slow transaction, is there.
QUEUES_WITH = """
WITH RECURSIVE q(name) AS (
    (SELECT queue_id FROM jobqueue_job WHERE {which} ORDER BY queue_id LIMIT 1)
    UNION ALL
    SELECT (SELECT queue_id FROM jobqueue_job WHERE {which} AND queue_id > q.name ORDER BY queue_id LIMIT 1)
    FROM q WHERE q.name IS NOT NULL)
SELECT name FROM q WHERE name IS NOT NULL
"""

# What ended and has been kept long enough. Such a row blocks no lane and none waits for it, so no key is locked.
# ``delete_at`` of a dead job of an ordered queue is empty; that it blocks is asked all the same. Each batch begins
# where the one before it ended, because the deleted rows stay in the index as long as some old transaction lives.
DELETE_OLD = f"""
WITH old AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE queue_id = %(queue)s AND delete_at >= %(since)s::timestamptz AND delete_at <= {NOW}
        AND state IN {listed(FINAL)} AND NOT ({IS_BLOCKING})
    ORDER BY delete_at LIMIT %(most)s FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM {LEAF} j USING old WHERE j.ctid = old.tid RETURNING j.delete_at)
SELECT count(*), max(delete_at)::text FROM gone
"""

# What the archive has verified. Found by id and by the time each ended: a job that was given another attempt meanwhile
# stays. Like the rows above, these block no lane, so no key is locked.
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

# No index knows how long each waiting job is kept, and one more would cost every send. So they are looked through, a
# bounded number at a time, along the index of the fetch, whose front are the oldest of each priority.
_KEPT_LONG_ENOUGH = f"GREATEST(created_at, start_after) + retention_seconds * interval '1 second' <= {NOW}"
_FETCHABLE_FROM = f"""SELECT id, priority, position, {_KEPT_LONG_ENOUGH} AS is_old FROM {LEAF}
        WHERE queue_id = %(queue)s AND {IS_FETCHABLE} AND {{}} ORDER BY priority DESC, position LIMIT %(most)s"""
# Two ranges and not one OR: that would be read from the beginning of the queue, and filtered.
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

# The law of lanes: a job held for its lane has a job ahead of it; which states count depends on the policy. Lanes are
# looked at one by one, leaping from key to key, so that it costs the number of lanes and not of the jobs in them.
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

# Whether a job of the key could be fetched, only the index of the fetch knows, and it does not go by key: beyond that
# many fetchable jobs nothing is judged, and need not be, because then the queue goes on.
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

# Rows of files that were sent, and have not been seen again for so many days.
FORGET_SENT_ROWS = f"""
DELETE FROM jobqueue_sentrow WHERE id IN (
    SELECT id FROM jobqueue_sentrow WHERE seen_at < {NOW} - %s * interval '1 day' ORDER BY seen_at LIMIT %s)
"""

# Of all processes one does a pass of maintenance at a time.
LEASE_SECONDS = 60  # renewed before each step; when a process dies in a pass, the others wait that long
# A time that lies too far ahead was written before the database's clock was put back, and does not count.
FREE_PASS = f"""
SELECT id FROM jobqueue_maintenance CROSS JOIN statement_timestamp() now
WHERE (lease_until BETWEEN now AND now + interval '{2 * LEASE_SECONDS} seconds') IS NOT TRUE
    AND (began_at BETWEEN now - %s * interval '1 second' AND now) IS NOT TRUE
FOR UPDATE SKIP LOCKED
"""
ENSURE_ROW = "INSERT INTO jobqueue_maintenance (id, places, report) VALUES (%s, '{}', '{}') ON CONFLICT DO NOTHING"
