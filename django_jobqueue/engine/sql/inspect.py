"""Queries about waiting, running, failed and blocked jobs; each reads an index and a bounded number of rows."""

from __future__ import annotations

from ...expressions import SEQUENCE
from ...policies import ORDERED
from ...states import DEAD, FINAL, RUNNING, Hold, JobState
from .parts import (
    HAS_ONE_RUNNING,
    IN_LANE,
    IS_BLOCKED_KEY,
    IS_BLOCKING,
    IS_FETCHABLE,
    IS_LANE,
    IS_RETRYING,
    IS_RUNNING,
    IS_UNTIL,
    NOW,
    listed,
)

# The number of the latest send; NULL before the first.
LAST_NUMBER = f"SELECT pg_sequence_last_value('{SEQUENCE}'::regclass)"

# The job with a number. No b-tree has the numbers, because every send would have to pay for it. But ids of version 7
# are in the primary key in the order of their creation, which is nearly the order of the numbers. So the millisecond in
# which the number was drawn is found by halving, with one probe of the index for each step; then some jobs on either
# side of it are read. Jobs whose ids the package did not make, or made long before they were stored, are not found.
_BEGINS = "(lpad(to_hex({}), 12, '0') || repeat('0', 20))::uuid"
_IS_IN_ORDER = "substr(id::text, 15, 1) = '7'"
WITH_NUMBER = f"""
WITH RECURSIVE search(low, high) AS (
    SELECT 0::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 86400000
    UNION ALL
    SELECT CASE WHEN next.seq <= %(number)s THEN middle ELSE low END,
        CASE WHEN next.seq <= %(number)s THEN high ELSE middle END
    FROM (SELECT low, high, (low + high) / 2 AS middle FROM search WHERE high - low > 1) s
    LEFT JOIN LATERAL (SELECT seq FROM jobqueue_job
        WHERE id >= {_BEGINS.format("middle")} AND id < {_BEGINS.format("high")} AND {_IS_IN_ORDER}
        ORDER BY id LIMIT 1) next ON true),
place AS (SELECT {_BEGINS.format("max(low)")} AS id FROM search)
SELECT id FROM (
    SELECT l.* FROM place p, LATERAL (
        SELECT id, seq FROM jobqueue_job WHERE id < p.id ORDER BY id DESC LIMIT %(near)s) l
    UNION ALL
    SELECT l.* FROM place p, LATERAL (
        SELECT id, seq FROM jobqueue_job WHERE id >= p.id ORDER BY id LIMIT %(near)s) l
) near WHERE seq = %(number)s LIMIT 1
"""

# The same job, whatever its id: by the index of ranges, of which many may have the number once space was used again.
WITH_NUMBER_ANYWHERE = "SELECT id FROM jobqueue_job WHERE seq = %(number)s LIMIT 1"

# The first of some windows of numbers in which there are jobs. OFFSET 0 keeps the planner from joining the windows to
# all jobs.
FIRST_WINDOW = """
SELECT w.place FROM unnest(%(low)s::bigint[], %(high)s::bigint[]) WITH ORDINALITY AS w (low, high, place)
WHERE EXISTS (SELECT 1 FROM jobqueue_job WHERE seq > w.low AND seq <= w.high OFFSET 0) LIMIT 1
"""

# ------------------------------------------------------------------------------------------------------------- counts


# The number of waiting jobs by queue, hold and, if {state} is given, state. It reads the indexes of waiting jobs, at
# most a limited number of rows of each. Without the state it reads only the indexes. On ordered queues, jobs on hold
# are in the index of lanes, whatever their hold.
def _counted(which: str, order: str, hold: str) -> str:
    return (
        f"SELECT state, hold, count(*) AS number FROM (SELECT {{state}} AS state, {hold} AS hold FROM jobqueue_job"
        f" WHERE queue_id = q.name AND {which} ORDER BY {order} LIMIT %(most)s) seen GROUP BY state, hold"
    )


_NOT_ORDERED = f"q.policy <> '{ORDERED}' AND"
WAITING = f"""
SELECT q.name, w.state, w.hold, w.number FROM jobqueue_queue q CROSS JOIN LATERAL (
    {_counted(f"{_NOT_ORDERED} {IS_FETCHABLE}", "priority DESC, position", "NULL")}
    UNION ALL {_counted(f"{_NOT_ORDERED} {IS_UNTIL}", "start_after", f"'{Hold.UNTIL}'")}
    UNION ALL {_counted(f"{_NOT_ORDERED} {HAS_ONE_RUNNING} AND {IS_LANE}", "singleton_key", f"'{Hold.LANE}'")}
    UNION ALL {_counted(f"q.policy = '{ORDERED}' AND {IN_LANE}", "singleton_key", "hold")}
    UNION ALL {_counted(f"q.policy = '{ORDERED}' AND {IS_BLOCKING} AND {IS_RETRYING}", "singleton_key", "hold")}
) w WHERE %(queues)s::text[] IS NULL OR q.name = ANY(%(queues)s)
"""

_OF_KEY = "SELECT state, hold FROM jobqueue_job WHERE queue_id = q.name AND singleton_key = w.key"


def _waiting(which: str, order: str, because: str, key: str = "''") -> str:
    return (
        f"(SELECT {because} AS because, {key} AS key, name, tags @> %(tags)s::text[] AS tagged, start_after"
        f" FROM jobqueue_job WHERE queue_id = q.name AND {which} ORDER BY {order} LIMIT %(most)s)"
    )


# The waiting jobs of some queues by what they wait for, by handler, and by whether they have the tags. A key of an
# ordered queue is judged once: its jobs wait for the job that blocks it, or for the first of them. It reads at most a
# limited number of rows of each queue and kind.
WAITING_FOR = f"""
SELECT q.name, q.paused_at IS NOT NULL, w.handler, w.tagged,
    CASE WHEN w.because <> '{Hold.LANE}' OR q.policy <> '{ORDERED}' THEN w.because
        WHEN b.state IN {listed(DEAD)} THEN 'blocked'
        WHEN b.state IN {listed(RUNNING)} THEN '{Hold.LANE}'
        WHEN b.state IS NOT NULL AND b.hold IS NULL OR b.state IS NULL AND w.has_front THEN 'ready'
        ELSE 'behind_delayed' END,
    sum(w.number)::bigint, min(w.due_at)
FROM jobqueue_queue q CROSS JOIN LATERAL (
    SELECT because, key, name AS handler, tagged, count(*) AS number,
        min(start_after) FILTER (WHERE because = '{Hold.UNTIL}') AS due_at,
        bool_or(because = 'ready') OVER (PARTITION BY key) AS has_front
    FROM (
        {_waiting(f"{_NOT_ORDERED} {IS_FETCHABLE}", "priority DESC, position", "'ready'")}
        UNION ALL {_waiting(f"{_NOT_ORDERED} {IS_UNTIL}", "start_after", f"'{Hold.UNTIL}'")}
        UNION ALL {_waiting(f"{_NOT_ORDERED} {HAS_ONE_RUNNING} AND {IS_LANE}", "singleton_key", f"'{Hold.LANE}'")}
        UNION ALL {
    _waiting(f"q.policy = '{ORDERED}' AND {IN_LANE}", "singleton_key", "COALESCE(hold, 'ready')", "singleton_key")
}
        UNION ALL {
    _waiting(
        f"q.policy = '{ORDERED}' AND {IS_BLOCKING} AND {IS_RETRYING}",
        "singleton_key",
        "COALESCE(hold, 'ready')",
        "singleton_key",
    )
}
    ) seen GROUP BY because, key, name, tagged
) w LEFT JOIN LATERAL ({_OF_KEY} AND {IS_BLOCKING} LIMIT 1) b ON q.policy = '{ORDERED}' AND w.because = '{Hold.LANE}'
WHERE q.name = ANY(%(queues)s) GROUP BY 1, 2, 3, 4, 5
"""

COUNT_RUNNING = f"""
SELECT queue_id, state, count(*) FROM (
    SELECT queue_id, state FROM jobqueue_job WHERE {IS_RUNNING} ORDER BY assignee, queue_id LIMIT %(most)s) seen
GROUP BY 1, 2
"""
COUNT_DEAD = f"""
SELECT q.name, q.policy, d.state, d.number, extract(epoch FROM {NOW} - d.since)::float8
FROM jobqueue_queue q CROSS JOIN LATERAL (
    SELECT state, count(*) AS number, min(finalized_at) AS since FROM (
        SELECT state, finalized_at FROM jobqueue_job WHERE queue_id = q.name AND state IN {listed(DEAD)}
        ORDER BY finalized_at LIMIT %(most)s) seen
    GROUP BY state) d
"""


def _in_states(kind: str, which: str) -> str:
    return (
        f"(SELECT '{kind}' AS kind, state, count(*) AS number, sum(count(*)) OVER () AS read FROM ("
        f"SELECT state FROM jobqueue_job WHERE {{queue}} {which} LIMIT %(most)s) seen GROUP BY state)"
    )


# The jobs of a queue, or of all queues, in the states that an index has: at most a limited number of each kind.
COUNT_STATES = " UNION ALL ".join(
    (
        _in_states("waiting", IS_FETCHABLE),
        _in_states("waiting", IS_UNTIL),
        _in_states("waiting", f"{HAS_ONE_RUNNING} AND {IS_LANE}"),
        _in_states("waiting", f"{IN_LANE} AND {IS_LANE}"),
        _in_states("running", IS_RUNNING),
        _in_states("dead", f"state IN {listed(DEAD)}"),
    )
)
OF_QUEUE = "queue_id = %(queue)s AND"
# The first job of each priority, by skipping from one priority to the next in the index. On ordered queues, a job that
# was sent behind a blocking one is fetchable until a fetch has held it, so it is skipped here.
_FIRST_OF_PRIORITY = (
    "SELECT f.priority, f.id, GREATEST(f.created_at, f.start_after) AS since FROM ("
    "SELECT id, priority, position, created_at, start_after, singleton_key FROM jobqueue_job"
    f" WHERE queue_id = q.name AND {IS_FETCHABLE}{{after}} ORDER BY priority DESC, position LIMIT 1000) f"
    f" WHERE q.policy <> '{ORDERED}' OR NOT EXISTS (SELECT 1 FROM jobqueue_job b WHERE b.queue_id = q.name"
    f" AND b.singleton_key = f.singleton_key AND b.id <> f.id AND {IS_BLOCKING})"
    " ORDER BY f.priority DESC, f.position LIMIT 1"
)
OLDEST_FETCHABLE = f"""
SELECT q.name, extract(epoch FROM {NOW} - min(f.since))::float8, (array_agg(f.id ORDER BY f.since))[1]
FROM jobqueue_queue q CROSS JOIN LATERAL (
    WITH RECURSIVE front(priority, id, since) AS (
        ({_FIRST_OF_PRIORITY.format(after="")})
        UNION ALL
        SELECT n.priority, n.id, n.since FROM front CROSS JOIN LATERAL (
            {_FIRST_OF_PRIORITY.format(after=" AND jobqueue_job.priority < front.priority")}) n)
    SELECT id, since FROM front LIMIT 100) f
GROUP BY q.name
"""

# The number of jobs that an archive would take: all that have ended, except those that block a lane.
ARCHIVABLE = f"state IN {listed(FINAL)} AND NOT ({IS_BLOCKING})"
COUNT_ARCHIVABLE = f"SELECT count(*) FROM jobqueue_job WHERE {ARCHIVABLE} AND finalized_at < %s {{queues}}"
OF_QUEUES = "AND queue_id = ANY(%s)"

# ------------------------------------------------------------------------------------------------------- the overview

# The running jobs, and numbers that change when an operator has something new to see. One statement; each part reads an
# index and a bounded number of rows.
PULSE = f"""
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM jobqueue_job WHERE state IN {listed(RUNNING)}
        AND (%(queue)s::text IS NULL OR queue_id = %(queue)s) ORDER BY assignee, queue_id LIMIT %(most)s) r),
    (SELECT string_agg(d.at::text, ',') FROM jobqueue_queue q CROSS JOIN LATERAL (
        SELECT finalized_at AS at FROM jobqueue_job WHERE queue_id = q.name AND state IN {listed(DEAD)}
        ORDER BY finalized_at DESC LIMIT 1) d),
    (SELECT string_agg(d.n::text, ',') FROM jobqueue_queue q CROSS JOIN LATERAL (
        SELECT count(*) || ' ' || min(finalized_at)::text AS n FROM (
            SELECT finalized_at FROM jobqueue_job WHERE queue_id = q.name AND state IN {listed(DEAD)}
            ORDER BY finalized_at LIMIT 100) few) d),
    (SELECT string_agg(name || (paused_at IS NULL)::text, ',' ORDER BY name) FROM jobqueue_queue),
    (SELECT string_agg(id::text || (stopping_at IS NULL)::text
        || (heartbeat_at > {NOW} - %(lost_seconds)s * interval '1 second')::text, ',' ORDER BY id)
        FROM jobqueue_worker WHERE stopped_at IS NULL),
    (SELECT count(*) FROM jobqueue_schedule
        WHERE enabled AND next_at < {NOW} - %(overdue_seconds)s * interval '1 second'),
    (SELECT counted_until FROM jobqueue_maintenance)
"""

# The queues, what their minutes of the last hour say, how many jobs waited at the end of the last one, and how many
# failed for good since some time and were neither retried nor skipped.
QUEUES = f"""
SELECT q.name, q.paused_at IS NOT NULL,
    EXISTS (SELECT 1 FROM jobqueue_queue source WHERE source.dead_letter_id = q.name),
    COALESCE(m.completed, 0)::bigint, COALESCE(m.failed, 0)::bigint, l.waiting, q.warning_queue_size, d.number
FROM jobqueue_queue q CROSS JOIN LATERAL (
    SELECT sum(completed) AS completed, sum(failed) AS failed FROM jobqueue_queueminute
    WHERE queue_id = q.name AND minute >= {NOW} - interval '1 hour') m
LEFT JOIN LATERAL (
    SELECT waiting FROM jobqueue_queueminute WHERE queue_id = q.name ORDER BY minute DESC LIMIT 1) l ON true
CROSS JOIN LATERAL (SELECT count(*) AS number FROM (
    SELECT 1 FROM jobqueue_job WHERE queue_id = q.name AND state IN {listed(DEAD)} AND finalized_at >= %(since)s
    ORDER BY finalized_at LIMIT %(most)s) seen) d
ORDER BY q.name
"""

# The blocked keys of one ordered queue or of all, by error, and how many jobs wait behind them. It reads at most a
# limited number of keys of each queue, and of jobs of each key and altogether.
BLOCKED_GROUPS = f"""
WITH blocked AS MATERIALIZED (
    SELECT q.name AS queue, b.* FROM jobqueue_queue q CROSS JOIN LATERAL (
        SELECT id, seq, singleton_key, fingerprint, finalized_at FROM jobqueue_job
        WHERE queue_id = q.name AND state IN {listed(DEAD)} ORDER BY finalized_at LIMIT %(keys)s) b
    WHERE q.policy = '{ORDERED}' AND (%(queue)s::text IS NULL OR q.name = %(queue)s)
), behind AS (
    SELECT queue, fingerprint, count(*) AS number FROM (
        SELECT b.queue, b.fingerprint FROM blocked b CROSS JOIN LATERAL (
            SELECT 1 FROM jobqueue_job WHERE queue_id = b.queue AND singleton_key = b.singleton_key AND {IN_LANE}
            LIMIT %(of_key)s) w
        LIMIT %(jobs)s) counted
    GROUP BY 1, 2
)
SELECT g.queue, g.fingerprint, g.keys, COALESCE(behind.number, 0), g.since, g.example FROM (
    SELECT queue, fingerprint, count(*) AS keys, min(finalized_at) AS since,
        (array_agg(id ORDER BY finalized_at, seq))[1] AS example
    FROM blocked GROUP BY 1, 2) g
LEFT JOIN behind ON behind.queue = g.queue AND behind.fingerprint = g.fingerprint
"""

# --------------------------------------------------------------------------------------------------- lanes and groups

# One probe of the index of lanes per hold, because only within a hold is it in the order of sends.
_FRONT = " UNION ALL ".join(
    f"(SELECT id, seq, hold, start_after, created_at FROM jobqueue_job WHERE queue_id = k.queue "
    f"AND singleton_key = k.key AND {IN_LANE} AND hold {hold} ORDER BY seq LIMIT %(number)s)"
    for hold in ("IS NULL", f"= '{Hold.LANE}'", f"= '{Hold.UNTIL}'")
)
FRONTS_OF_LANES = f"""
SELECT k.queue, k.key, f.id, f.seq, f.hold, f.start_after, f.created_at
FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS k (queue, key), LATERAL ({_FRONT}) f
"""
WAITING_IN_LANES = f"""
SELECT k.queue, k.key, n.number
FROM unnest(%(queues)s::text[], %(keys)s::text[]) AS k (queue, key), LATERAL (
    SELECT count(*) AS number FROM (
        SELECT 1 FROM jobqueue_job WHERE queue_id = k.queue AND singleton_key = k.key AND {IN_LANE}
        LIMIT %(most)s
    ) counted
) n
"""

# The jobs that block keys, at most a limited number of each queue along its index. {queue} and {jobs} are conditions.
_BLOCKED = f"""
jobqueue_queue q CROSS JOIN LATERAL (
    SELECT id, seq, fingerprint, singleton_key, finalized_at FROM jobqueue_job
    WHERE queue_id = q.name AND {IS_BLOCKED_KEY} {{jobs}}
    ORDER BY finalized_at {{order}}, seq {{order}} LIMIT %(most)s) b
WHERE q.policy = '{ORDERED}' {{queue}}
"""
BLOCKED_JOBS = f"""
SELECT b.id FROM {_BLOCKED}
ORDER BY b.finalized_at {{order}}, b.seq {{order}} LIMIT %(most)s - %(offset)s OFFSET %(offset)s
"""
COUNT_BLOCKED = f"SELECT count(*) FROM (SELECT 1 FROM {_BLOCKED} LIMIT %(most)s) blocked"

# The failures of each of the last hours, the current hour first.
TREND_HOURS = 24
_OF_HOURS = ", ".join(f"count(*) FILTER (WHERE dead AND hours = {hour})" for hour in range(TREND_HOURS))

# Skips from fingerprint to fingerprint in their index, then reads the latest jobs of each.
FAILURE_GROUPS = f"""
WITH RECURSIVE f(fingerprint, place) AS (
    (SELECT fingerprint, 1 FROM jobqueue_job WHERE NOT fingerprint = '' ORDER BY fingerprint LIMIT 1)
    UNION ALL
    SELECT (SELECT fingerprint FROM jobqueue_job WHERE NOT fingerprint = '' AND fingerprint > f.fingerprint
        ORDER BY fingerprint LIMIT 1), f.place + 1
    FROM f WHERE f.fingerprint IS NOT NULL AND f.place < %(groups)s)
SELECT f.fingerprint, g.number, g.seen, g.first, g.last, g.ids, g.queues, g.hours
FROM f CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE dead) AS number, count(*) AS seen, min(ended) AS first, max(ended) AS last,
        (array_agg(id ORDER BY seq DESC) FILTER (WHERE dead))[1:1] AS ids,
        (array_agg(DISTINCT queue_id) FILTER (WHERE dead))[1:5] AS queues, ARRAY[{_OF_HOURS}] AS hours
    FROM (
        SELECT id, seq, queue_id, attempt_finished_at AS ended, state IN {listed(DEAD)} AS dead,
            floor(extract(epoch FROM {NOW} - attempt_finished_at) / 3600) AS hours
        FROM jobqueue_job WHERE fingerprint = f.fingerprint AND NOT fingerprint = '' ORDER BY seq DESC LIMIT %(jobs)s
    ) latest
) g WHERE f.fingerprint IS NOT NULL AND g.number > 0
"""

# ------------------------------------------------------------------------------------------------------------- health

# Dead letters wait for an operator: for them it is no problem that no worker takes them and that they have no handler.
_NO_DEAD_LETTERS = "NOT EXISTS (SELECT 1 FROM jobqueue_queue o WHERE o.dead_letter_id = q.name)"

# The first fetchable jobs of each queue, in the order of the index that a fetch reads, and the first delayed jobs.
WAITING_HANDLERS = f"""
SELECT q.name, w.name, count(*) FROM jobqueue_queue q CROSS JOIN LATERAL (
    (SELECT name FROM jobqueue_job WHERE queue_id = q.name AND {IS_FETCHABLE}
    ORDER BY priority DESC, position LIMIT %(n)s)
    UNION ALL
    (SELECT name FROM jobqueue_job WHERE queue_id = q.name AND hold = '{Hold.UNTIL}' ORDER BY start_after LIMIT %(n)s)
) w WHERE {_NO_DEAD_LETTERS} GROUP BY 1, 2 ORDER BY 1, 2
"""

# The job that the next fetch would claim, without dead letters.
NEXT_TO_FETCH = f"""
SELECT q.name, q.paused_at IS NOT NULL, extract(epoch FROM {NOW} - w.created_at)::float8
FROM jobqueue_queue q CROSS JOIN LATERAL (
    SELECT created_at FROM jobqueue_job WHERE queue_id = q.name AND {IS_FETCHABLE}
    ORDER BY priority DESC, position LIMIT 1) w WHERE {_NO_DEAD_LETTERS} ORDER BY 1
"""

# The dead letters of each queue that another one names as its dead letter: those that wait, and those that failed for
# good, because a redrive takes both. With the seconds since the oldest of those that were counted was sent.
DEAD_LETTERS = f"""
SELECT d.name, count(*), extract(epoch FROM {NOW} - min(l.created_at))::float8
FROM (SELECT DISTINCT dead_letter_id AS name FROM jobqueue_queue WHERE dead_letter_id IS NOT NULL) d
CROSS JOIN LATERAL (
    (SELECT created_at FROM jobqueue_job WHERE queue_id = d.name AND {IS_FETCHABLE}
        ORDER BY priority DESC, position LIMIT %(most)s)
    UNION ALL
    (SELECT created_at FROM jobqueue_job WHERE queue_id = d.name AND state IN {listed(DEAD)}
        ORDER BY finalized_at LIMIT %(most)s)) l
GROUP BY 1 ORDER BY 1
"""

# The number of blocked keys of each queue without dead letters, and the seconds since the first was blocked.
BLOCKED_KEYS = f"""
SELECT q.name, count(*), extract(epoch FROM {NOW} - min(b.finalized_at))::float8
FROM jobqueue_queue q CROSS JOIN LATERAL (
    SELECT finalized_at FROM jobqueue_job WHERE queue_id = q.name AND state IN {listed(DEAD)}
    ORDER BY finalized_at LIMIT %s) b
WHERE q.policy = '{ORDERED}' AND {_NO_DEAD_LETTERS} GROUP BY 1 ORDER BY 1
"""
# Active jobs past their deadline.
OVERDUE = f"""
SELECT queue_id, count(*), max(age)::float8 FROM (
    SELECT queue_id, extract(epoch FROM {NOW} - expire_at) AS age FROM jobqueue_job
    WHERE state = '{JobState.ACTIVE}' AND expire_at < {NOW} - %s * interval '1 second' LIMIT %s) o
GROUP BY 1 ORDER BY 1
"""

# Finished jobs that should have been deleted.
NOT_DELETED = f"""
SELECT q.name, count(*), extract(epoch FROM {NOW} - min(d.delete_at))::float8
FROM jobqueue_queue q CROSS JOIN LATERAL (
    SELECT delete_at FROM jobqueue_job
    WHERE queue_id = q.name AND delete_at < {NOW} - %s * interval '1 second'
    ORDER BY delete_at LIMIT %s) d
GROUP BY 1 ORDER BY 1
"""
