"""The statements of grouped reads.

A group's jobs go in the order of their sends, and its head is its oldest job that is neither finished nor deleted,
whether it can go or not. Groups rank by their heads as jobs do in a plain fetch: by priority, then by age. The jobs
without a group are one, and have no index of groups (see ``Job.Meta``), so they have statements of their own.
"""

from __future__ import annotations

from ...policies import QueuePolicy
from ...states import DEAD, OCCUPIED, RETRYING, RUNNING, Hold, JobState
from .parts import IS_ELIGIBLE, IS_FETCHABLE, IS_RUNNING, LEAF, listed

IN_GROUP = f"group_key <> '' AND state IN {listed(OCCUPIED | DEAD)}"
_IN_QUEUE = "queue_id = %(queue)s"
_FITS = "tags @> %(tags)s::text[]"
_RUNS = (  # in the words of its index, or the planner may take another
    f"(SELECT true FROM {LEAF} WHERE {_IN_QUEUE} AND group_key <> '' AND state NOT IN {listed(set(JobState) - RUNNING)}"
    " AND group_key = {key} LIMIT 1)"
)

# The groups whose heads lie among the first jobs that could be fetched. Of each the oldest one seen is asked whether it
# is the head; when it is not, the head cannot go, or is further back. ``OFFSET 0`` keeps the order and the number of
# questions: they are asked along the rank, until there are enough. Also, how far it saw, and whether there was a job
# without a group.
GROUPS_IN_FRONT = f"""
WITH front AS MATERIALIZED (
    SELECT group_key, seq, priority, position, {_FITS} AS fits FROM {LEAF}
    WHERE {_IN_QUEUE} AND {IS_FETCHABLE} ORDER BY priority DESC, position LIMIT %(rows)s),
first AS MATERIALIZED (
    SELECT DISTINCT ON (group_key) * FROM front WHERE group_key <> '' ORDER BY group_key, seq),
head AS MATERIALIZED (
    SELECT f.* FROM (
        SELECT * FROM first WHERE fits AND NOT group_key = ANY(%(without)s::text[])
        ORDER BY priority DESC, position OFFSET 0) f
    WHERE f.seq = (SELECT seq FROM {LEAF} WHERE {_IN_QUEUE} AND {IN_GROUP} AND group_key = f.group_key
            ORDER BY seq LIMIT 1)
        AND {_RUNS.format(key="f.group_key")} IS NULL
    LIMIT %(groups)s)
SELECT (SELECT count(*) FROM front), (SELECT true FROM front WHERE group_key = '' LIMIT 1),
    COALESCE((SELECT json_agg(json_build_array(group_key, priority, position)) FROM head), '[]')::text
"""

# All groups, leaping from one to the next: it costs the number of groups and not of their jobs.
GROUPS_BY_KEY = f"""
WITH RECURSIVE head AS (
    (SELECT group_key, state, hold, priority, position, {_FITS} AS fits FROM {LEAF}
        WHERE {_IN_QUEUE} AND {IN_GROUP} ORDER BY group_key, seq LIMIT 1)
    UNION ALL
    SELECT n.* FROM head CROSS JOIN LATERAL (
        SELECT group_key, state, hold, priority, position, {_FITS} AS fits FROM {LEAF}
        WHERE {_IN_QUEUE} AND {IN_GROUP} AND group_key > head.group_key ORDER BY group_key, seq LIMIT 1) n)
SELECT h.group_key, h.priority, h.position FROM (
    SELECT * FROM head WHERE {IS_ELIGIBLE} AND hold IS NULL AND fits AND NOT group_key = ANY(%(without)s::text[])
    ORDER BY priority DESC, position OFFSET 0) h
WHERE {_RUNS.format(key="h.group_key")} IS NULL LIMIT %(groups)s
"""

# The first jobs of each of these groups in their order, whether each can go, and nothing of a group with a job running.
JOBS_OF_GROUPS = f"""
SELECT k.key, r.tid, r.id, r.goes FROM unnest(%(keys)s::text[]) k(key) CROSS JOIN LATERAL (
    SELECT ctid AS tid, id, seq, {IS_FETCHABLE} AND {_FITS} AS goes FROM {LEAF}
    WHERE {_IN_QUEUE} AND {IN_GROUP} AND group_key = k.key ORDER BY seq LIMIT %(depth)s) r
WHERE {_RUNS.format(key="k.key")} IS NULL
ORDER BY k.key, r.seq
"""

_WITHOUT_GROUP = f"policy = '{QueuePolicy.STANDARD}' AND group_key = ''"
_COLUMNS = f"ctid AS tid, id, seq, priority, position, {IS_FETCHABLE} AND {_FITS} AS goes"
JOBS_WITHOUT_GROUP = f"""
SELECT '', r.tid, r.id, r.goes, r.priority, r.position FROM (
    (SELECT {_COLUMNS} FROM {LEAF}
        WHERE {_IN_QUEUE} AND {IS_FETCHABLE} AND group_key = '' AND state = '{JobState.CREATED}'
        ORDER BY priority DESC, position LIMIT %(depth)s)
    UNION ALL
    (SELECT {_COLUMNS} FROM {LEAF}
        WHERE {_IN_QUEUE} AND {_WITHOUT_GROUP} AND (hold = '{Hold.UNTIL}' OR state IN {listed(RETRYING | DEAD)})
        ORDER BY seq LIMIT %(depth)s)) r
WHERE (SELECT true FROM {LEAF} WHERE {_IN_QUEUE} AND {IS_RUNNING} AND group_key = '' LIMIT 1) IS NULL
ORDER BY r.seq LIMIT %(depth)s
"""
