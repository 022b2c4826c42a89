"""Storing jobs."""

from __future__ import annotations

from ...expressions import NEXT_SEQ
from ...policies import ORDERED, QueuePolicy
from ...states import Hold
from .parts import NOW

# The statement that stores the job also reads the queue's row: no cache to become stale, and no second round trip.
# {columns} are those with a value from this send; other options of the job come from the queue. No row is returned if
# the queue does not exist, if a job of an ordered queue has no key, or if the id or the policy's slot is taken; the
# transaction stays usable in each case.
SEND = """
INSERT INTO jobqueue_job (queue_id, policy, {columns})
SELECT q.name, q.policy, {values} FROM jobqueue_queue q WHERE q.name = %(queue)s AND {condition}
{on_conflict}
RETURNING {returning}
"""
# Jobs that no constraint can refuse are stored without ON CONFLICT, which would check every unique index first. Only
# for the two common policies: with more policies, planning the condition costs more than the rarer ones would gain.
NEVER_REFUSED = f"q.policy = '{QueuePolicy.STANDARD}'"
NEVER_REFUSED_WITH_KEY = f"q.policy = '{ORDERED}'"
HAS_ITS_KEY = f"(q.policy <> '{ORDERED}' OR %(has_key)s)"
UNLESS_ID_EXISTS = "NOT EXISTS (SELECT 1 FROM jobqueue_job j WHERE j.id = %(id)s)"
START_AFTER = f"COALESCE(%(start_after)s::timestamptz, {NOW} + %(delay)s * interval '1 second')"
HOLD_UNTIL = f"CASE WHEN {START_AFTER} > {NOW} THEN '{Hold.UNTIL}' END"
THROTTLE_SLOT = f"%(throttle_name)s || ':' || floor(extract(epoch FROM {NOW}) / %(throttle_seconds)s)"

# The primary key refuses an id twice only within a queue, because it must contain the column of the partitions. So a
# sender with an id locks the id and then looks in all queues with a later statement, because the snapshot of the
# locking statement is older than the lock. The prefix separates these locks from those of keys and workers.
ID_HASH = "hashtextextended('jobqueue id ' || {id}::text, 0)"
LOCK_ID = f"SELECT pg_advisory_xact_lock({ID_HASH.format(id='%(id)s::uuid')})"
# Returns the ids that a job has, and locks the others. Taken ids are not locked: a transaction that sends many of them
# would make others wait for no reason, and could deadlock with a transaction that sends them in another order. A
# transaction stricter than READ COMMITTED locks nothing, because its later statements see no new rows.
LOCK_FREE_IDS = f"""
WITH given AS MATERIALIZED (
    SELECT g.id, {ID_HASH.format(id="g.id")} AS hash,
        (SELECT true FROM jobqueue_job j WHERE j.id = g.id LIMIT 1) AS is_taken
    FROM unnest(%(ids)s::uuid[]) g(id) ORDER BY hash)
SELECT id FROM given WHERE CASE WHEN is_taken THEN true
    WHEN current_setting('transaction_isolation') = 'read committed' THEN pg_advisory_xact_lock(hash) IS NULL
    ELSE false END
"""

INSERT_OTHERS = "INSERT INTO jobqueue_job ({columns}) VALUES {values} ON CONFLICT DO NOTHING RETURNING id"
NUMBERS = f"SELECT {NEXT_SEQ} FROM generate_series(1, %s)"
SEND_MANY = "COPY jobqueue_job ({columns}) FROM STDIN"

CHANNEL = "django_jobqueue"
# Without functions: planning them would take a fifth of the time, and these two statements need no planning.
NOTIFY = "SET LOCAL synchronous_commit = off; NOTIFY {channel}, {queue}"
LISTEN = f'LISTEN "{CHANNEL}"'
# Calling this function makes PostgreSQL remove notifications that all listeners have read; a failing NOTIFY does not.
NOTIFICATION_QUEUE_USAGE = "SELECT pg_notification_queue_usage()"
