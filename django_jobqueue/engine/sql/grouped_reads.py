"""The statements of grouped reads.

The jobs of a group are fetched in the order they were sent. The head of a group is its oldest job that is neither
finished nor deleted, whether it is fetchable or not. Groups are ordered by their heads as jobs are in a plain fetch: by
priority, then by age. All jobs without a group form one group. The index of groups does not contain them (see
``Job.Meta``), so they have their own statements.
"""

from __future__ import annotations

from ...policies import QueuePolicy
from ...states import DEAD, OCCUPIED, RETRYING, RUNNING, Hold, JobState
from .parts import IS_ELIGIBLE, IS_FETCHABLE, IS_RUNNING, LEAF, NOT_SKIPPED, listed

IN_GROUP = f"group_key <> '' AND state IN {listed(OCCUPIED | DEAD)}"
_IN_QUEUE = "queue_id = %(queue)s"
_FITS = f"tags @> %(tags)s::text[] AND {NOT_SKIPPED}"
_RUNS = (  # with the condition of its index, or the planner may use another index
    f"(SELECT true FROM {LEAF} WHERE {_IN_QUEUE} AND group_key <> '' AND state NOT IN {listed(set(JobState) - RUNNING)}"
    " AND group_key = {key} LIMIT 1)"
)

# The groups whose heads are among the first fetchable jobs. For each group it checks whether the oldest job it read is
# the head; if not, the head is not fetchable, or further back. Because of ``OFFSET 0`` the groups are checked in order,
# and only until there are enough. Also returns how many jobs it read, and whether one of them had no group.
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

# All groups, by skipping from one to the next in the index: its cost depends on the number of groups, not of jobs.
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

# The first jobs of each of these groups in order, and whether each is fetchable; no jobs of a group with a running job.
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
