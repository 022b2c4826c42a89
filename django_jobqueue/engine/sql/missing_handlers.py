"""Statements about handlers that a worker lacks: which other worker has them, and the jobs that wait for one."""

from __future__ import annotations

from ...states import UNHANDLED, FailureReason, JobState
from .parts import IS_UNTIL, LEAF, NOW

# What a process can run, and what it lacks. Both are written only when they change.
ANNOUNCE = """
UPDATE jobqueue_worker SET queues = %(queues)s::text[], handlers = %(handlers)s::text[], lacks = %(lacks)s::text[]
WHERE id = %(me)s
"""

_LIVES = f"""w.stopped_at IS NULL
    AND w.heartbeat_at > {NOW} - COALESCE(w.lost_seconds, %(lost)s) * interval '1 second'"""

# Those of these handlers that another live worker has, for the queue in question. A worker that announces no handlers,
# such as a stream, takes the jobs of all. A worker that is stopping takes none.
HAD_ELSEWHERE = f"""
SELECT u.place FROM unnest(%(queues)s::text[], %(announced)s::text[]) WITH ORDINALITY u(queue, announced, place)
WHERE EXISTS (SELECT FROM jobqueue_worker w WHERE w.id <> %(me)s AND {_LIVES} AND w.stopping_at IS NULL
    AND (w.handlers IS NULL OR u.announced = ANY(w.handlers)) AND (w.queues = '{{}}' OR u.queue = ANY(w.queues)))
"""

# What other workers lack, or lacked before they stopped: jobs may still wait for it.
LACKED_ELSEWHERE = f"""
SELECT DISTINCT unnest(lacks) FROM jobqueue_worker
WHERE id <> %(me)s AND lacks <> '{{}}' AND heartbeat_at > {NOW} - (%(grace)s + %(lost)s) * interval '1 second'
"""

# For how many seconds each job has waited for its handler: since the first of the attempts at the end of its history
# that were given back for that reason.
WAITED = f"""
SELECT j.id, extract(epoch FROM {NOW} - (
    SELECT min((a.entry->>'ended')::timestamptz) FROM jsonb_array_elements(j.attempts) WITH ORDINALITY a(entry, place)
    WHERE a.place > COALESCE((
        SELECT max(o.place) FROM jsonb_array_elements(j.attempts) WITH ORDINALITY o(entry, place)
        WHERE o.entry->>'outcome' <> '{UNHANDLED}'), 0)))::float8
FROM jobqueue_job j WHERE j.queue_id = %(queue)s AND j.id = ANY(%(ids)s) AND j.attempts <> '[]'
"""

_WAITS = f"""queue_id = %(queue)s AND {IS_UNTIL} AND start_after <= {NOW} + %(grace)s * interval '1 second'
        AND state = '{JobState.RETRY}' AND reason = '{FailureReason.NO_HANDLER}'
        AND attempts->-1->>'outcome' = '{UNHANDLED}'"""

NAMES_WAITED_FOR = f"SELECT DISTINCT name FROM {LEAF} WHERE {_WAITS}"

# Makes jobs fetchable at once, because a worker has the handler that they wait for.
RELEASE = f"""
WITH waiting AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE {_WAITS} AND name = ANY(%(names)s::text[])
    ORDER BY start_after LIMIT %(most)s FOR UPDATE SKIP LOCKED)
UPDATE {LEAF} j SET hold = NULL, start_after = {NOW} FROM waiting WHERE j.ctid = waiting.tid
"""
