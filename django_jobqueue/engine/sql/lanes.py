"""Lanes: which job of a key is first, which jobs are on hold, and which are released."""

from __future__ import annotations

from ...policies import ORDERED, DelayedHead
from ...states import Hold, JobState
from .parts import HAS_ONE_RUNNING, IN_LANE, IS_BLOCKING, IS_RUNNING, LEAF, NOW

# These statements only lock. What is in a lane is read by a later statement: one that both locks and reads would read
# with a snapshot from before the lock.
KEY_HASH = "hashtextextended({key}, hashtextextended({queue}, 0))"

TRY_KEYS = f"""
SELECT k.key, pg_try_advisory_xact_lock({KEY_HASH.format(key="k.key", queue="%(queue)s")}),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint
FROM unnest(%(keys)s::text[]) k(key)
"""

TRY_LANES = f"""
SELECT k.queue, k.key, pg_try_advisory_xact_lock({KEY_HASH.format(key="k.key", queue="k.queue")})
FROM unnest(%(queues)s::text[], %(keys)s::text[]) k(queue, key)
"""

WAIT_FOR_KEYS = f"""
SELECT pg_advisory_xact_lock(h) FROM (
    SELECT DISTINCT {KEY_HASH.format(key="k.key", queue="k.queue")} AS h
    FROM unnest(%(queues)s::text[], %(keys)s::text[]) k(queue, key) ORDER BY 1) sorted
"""


# Which job is first in a lane of an ordered queue: with 'pass' a job that is not due does not count, with 'block' it
# does. One probe per kind of hold, because one OR would read the whole lane. ``ORDER BY hold, seq`` is the order of the
# index. Each probe is a separate subquery: an EXISTS would become a join that reads all blocking rows of the queue.
def lowest(hold: str, columns: str = "seq") -> str:
    return (
        f"SELECT {columns} FROM {LEAF} WHERE queue_id = %(queue)s AND {IN_LANE} AND singleton_key = k.key"
        f" AND hold {hold} ORDER BY hold, seq LIMIT 1"
    )


# The first job of a lane in the order of that index: a job held for the lane, else a job that is not due, else a
# fetchable job. So a statement that has read a fetchable job need not look for the others.
PLACE = "ctid AS tid, seq, priority"
FIRST = (
    f"SELECT {PLACE}, hold FROM {LEAF} WHERE queue_id = %(queue)s AND {IN_LANE} AND singleton_key = k.key"
    " ORDER BY hold, seq LIMIT 1"
)

_BLOCKS = f"(SELECT delayed_head = '{DelayedHead.BLOCK}' FROM jobqueue_queue WHERE name = %(queue)s)"
IS_BLOCKED = f"(SELECT true FROM {LEAF} WHERE queue_id = %(queue)s AND {IS_BLOCKING} AND singleton_key = k.key LIMIT 1)"
# The first job that is not due, if such jobs count.
FIRST_NOT_DUE = f"""(SELECT CASE WHEN {_BLOCKS} THEN ({lowest(f"= '{Hold.UNTIL}'")}) END)"""
# A due job whose hold is not lifted yet: it counts, and it goes before any later job of its key.
OVERDUE = f"""(SELECT true FROM {LEAF} WHERE queue_id = %(queue)s AND policy = '{ORDERED}' AND hold = '{Hold.UNTIL}'
        AND singleton_key = k.key AND start_after <= {NOW} AND state = '{JobState.CREATED}' AND seq < k.seq
        ORDER BY start_after LIMIT 1)"""

ANY_DUE = f"""(SELECT start_after <= {NOW} FROM {LEAF} WHERE queue_id = %(queue)s AND hold = '{Hold.UNTIL}'
        ORDER BY start_after LIMIT 1)"""  # asked once, so that the question above is mostly not asked for each key

# One statement finds the job that blocks, the first job and the due job. Between two statements a hold may be lifted,
# and neither would see the job: it would be on hold for the first, and no longer overdue for the second.
LOOK_AT_LANES = f"""
SELECT k.key, k.blocked, k.seq, (CASE WHEN NOT k.blocked AND {ANY_DUE} THEN {OVERDUE} END) IS NOT NULL
FROM (SELECT k.key, {IS_BLOCKED} IS NOT NULL AS blocked,
        CASE WHEN first.hold IS NULL THEN first.seq ELSE
            LEAST(CASE WHEN first.hold = '{Hold.LANE}' THEN first.seq END, ({lowest("IS NULL")}), {FIRST_NOT_DUE})
            END AS seq
    FROM unnest(%(lanes)s::text[]) k(key) LEFT JOIN LATERAL ({FIRST}) first ON true OFFSET 0) k
"""

LOOK_AT_RUNNING = f"""
SELECT k.key, EXISTS (SELECT 1 FROM {LEAF} WHERE queue_id = %(queue)s AND policy = %(policy)s
    AND singleton_key = k.key AND {IS_RUNNING})
FROM unnest(%(lanes)s::text[]) k(key)
"""

HOLD_CANDIDATES = f"""
UPDATE {LEAF} SET hold = '{Hold.LANE}' WHERE ctid = ANY(%(held)s::tid[])
"""

# All jobs of a blocked lane are put on hold at once, so that a thousand jobs behind one failure are read once and not a
# thousand times. Rows that another fetch has locked are skipped: waiting for them could deadlock.
HOLD_LANES = f"""
WITH waiting AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE queue_id = %(queue)s AND {IN_LANE} AND singleton_key = ANY(%(keys)s) AND hold IS NULL
    LIMIT %(most)s FOR UPDATE SKIP LOCKED)
UPDATE {LEAF} j SET hold = '{Hold.LANE}' FROM waiting WHERE j.ctid = waiting.tid
"""

# The next job of each lane is the first job by the index if it is fetchable. Otherwise it is the earlier of that job
# and the first fetchable one, unless a job that is not due goes before both.
FIRST_OF_EACH = f"SELECT k.key, first.* FROM unnest(%(keys)s::text[]) k(key) CROSS JOIN LATERAL ({FIRST}) first"
_OTHER_GOES = f"(k.hold = '{Hold.UNTIL}' OR free.seq < k.seq)"


def _lower(column: str) -> str:
    return f"CASE WHEN {_OTHER_GOES} THEN free.{column} ELSE k.{column} END"


HEAD_OF_HELD = f"""
    SELECT k.key, {_lower("tid")} AS tid, {_lower("seq")} AS seq, {_lower("priority")} AS priority
    FROM seen k LEFT JOIN LATERAL ({lowest("IS NULL", PLACE)}) free ON true
    WHERE k.hold IS NOT NULL AND {_lower("seq")} < COALESCE({FIRST_NOT_DUE}, 9223372036854775807)
"""

# Lifts the hold of the next job of each of these lanes, if there is one. The keys must have been locked by an earlier
# statement: a statement that both locks and reads would read with a snapshot from before the lock. Returns the lanes in
# which a job waits, and whether its row was skipped because another transaction has locked it. The row is found again
# by its id, because the locked version may be newer than this statement's snapshot.
RELEASE_LANES = f"""
WITH seen AS MATERIALIZED ({FIRST_OF_EACH}),
head AS MATERIALIZED ({HEAD_OF_HELD} AND {_OTHER_GOES} IS NOT TRUE AND {IS_BLOCKED} IS NULL),
got AS MATERIALIZED (
    SELECT head.key, g.id FROM head CROSS JOIN LATERAL (
        SELECT id FROM {LEAF} WHERE ctid = head.tid AND state = '{JobState.CREATED}'
        LIMIT 1 FOR UPDATE SKIP LOCKED) g),
released AS (UPDATE {LEAF} j SET hold = NULL FROM got WHERE j.id = got.id)
SELECT key, key IN (SELECT key FROM head) AND NOT key IN (SELECT key FROM got) FROM seen
"""

RELEASE_RUNNING = f"""
WITH head AS MATERIALIZED (
    SELECT k.key, h.tid FROM unnest(%(keys)s::text[]) k(key) CROSS JOIN LATERAL (
        SELECT ctid AS tid FROM {LEAF} WHERE queue_id = %(queue)s AND {HAS_ONE_RUNNING} AND singleton_key = k.key
            AND hold = '{Hold.LANE}' ORDER BY priority DESC, position LIMIT 1) h
    WHERE (SELECT true FROM {LEAF} WHERE queue_id = %(queue)s AND policy = %(policy)s
        AND singleton_key = k.key AND {IS_RUNNING} LIMIT 1) IS NULL),
got AS MATERIALIZED (
    SELECT head.key, g.id FROM head CROSS JOIN LATERAL (
        SELECT id FROM {LEAF} WHERE ctid = head.tid AND hold = '{Hold.LANE}'
        LIMIT 1 FOR UPDATE SKIP LOCKED) g),
released AS (UPDATE {LEAF} j SET hold = NULL FROM got WHERE j.id = got.id)
SELECT key, NOT key IN (SELECT key FROM got) FROM head
"""

# Stores lanes that could not be released by the transaction that ended one of their jobs.
REMEMBER_LANES = """
INSERT INTO jobqueue_pendingrelease (queue, policy, singleton_key)
SELECT * FROM unnest(%(queues)s::text[], %(policies)s::text[], %(keys)s::text[]) RETURNING id
"""
PENDING_IDS = "SELECT id FROM jobqueue_pendingrelease WHERE queue = COALESCE(%(queue)s, queue) ORDER BY id"
PENDING_LANES = """
SELECT id, queue, policy, singleton_key FROM jobqueue_pendingrelease WHERE id = ANY(%(ids)s) ORDER BY id
FOR UPDATE SKIP LOCKED
"""
FORGET_LANES = "DELETE FROM jobqueue_pendingrelease WHERE id = ANY(%(ids)s)"
IS_PENDING = """(SELECT true FROM jobqueue_pendingrelease p WHERE p.queue = %(queue)s AND p.singleton_key = k.key
        LIMIT 1)"""
