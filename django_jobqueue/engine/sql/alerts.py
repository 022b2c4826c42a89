"""Statements that find what operators must be told, and that keep what they were told."""

from __future__ import annotations

from ...policies import ORDERED
from ...states import DEAD
from .parts import IS_FETCHABLE, IS_RUNNING, NOW, listed

CLAIM_SECONDS = 120  # longer than all deliveries of a message may take
MOST_AT_ONCE = 1_000  # problems in one message
REMIND_SECONDS = 86_400
RETRY_SECONDS = 60  # doubled after each failure, up to the interval between two alerts
COUNTED_LATE_SECONDS = 180  # minutes are counted that long after they began, at the latest

_NO_DEAD_LETTERS = "NOT EXISTS (SELECT 1 FROM jobqueue_queue d WHERE d.dead_letter_id = q.name)"

# Blocked keys by error. The oldest errors have groups of their own; the others are one group, because messages of
# errors may differ for each key. It reads a limited number of keys of each queue, the latest first, so that a new error
# is always found. The last column says whether a queue has more keys.
BLOCKED_BY_ERROR = f"""
WITH blocked AS MATERIALIZED (
    SELECT q.name AS queue, b.* FROM jobqueue_queue q CROSS JOIN LATERAL (
        SELECT id, singleton_key, finalized_at,
            COALESCE(NULLIF(fingerprint, ''), NULLIF(reason, ''), 'unknown') AS error,
            row_number() OVER (ORDER BY finalized_at DESC) AS place
        FROM jobqueue_job WHERE queue_id = q.name AND state IN {listed(DEAD)}
        ORDER BY finalized_at DESC LIMIT %(most)s) b
    WHERE q.policy = '{ORDERED}' AND {_NO_DEAD_LETTERS}),
errors AS (
    SELECT error, row_number() OVER (ORDER BY min(finalized_at), error) AS place FROM blocked GROUP BY error)
SELECT CASE WHEN e.place <= %(groups)s THEN e.error ELSE '' END AS name, count(*), count(DISTINCT e.error),
    min(finalized_at), max(finalized_at), (array_agg(DISTINCT queue))[1:20],
    (array_agg(id ORDER BY finalized_at DESC))[1],
    (array_agg(queue ORDER BY finalized_at DESC))[1:%(keys)s],
    (array_agg(singleton_key ORDER BY finalized_at DESC))[1:%(keys)s], bool_or(b.place >= %(most)s)
FROM blocked b JOIN errors e USING (error) GROUP BY 1 ORDER BY 4
"""

# Queues with a job that could have run for that long, where no worker that serves the queue was alive since, or where
# no attempt has begun or ended since and none runs. The minutes say whether attempts began or ended; without a recent
# count they say nothing.
STOPPED_QUEUES = f"""
SELECT q.name, n.since, s.at IS NULL OR s.at < {NOW} - %(seconds)s * interval '1 second' AS has_no_worker
FROM jobqueue_queue q CROSS JOIN LATERAL (
    SELECT GREATEST(created_at, start_after) AS since FROM jobqueue_job WHERE queue_id = q.name AND {IS_FETCHABLE}
    ORDER BY priority DESC, position LIMIT 1) n
CROSS JOIN LATERAL (
    SELECT max(COALESCE(stopped_at, heartbeat_at)) AS at FROM jobqueue_worker w
    WHERE cardinality(w.queues) = 0 OR q.name = ANY(w.queues)) s
WHERE q.paused_at IS NULL AND {_NO_DEAD_LETTERS} AND n.since <= {NOW} - %(seconds)s * interval '1 second'
    AND (s.at IS NULL OR s.at < {NOW} - %(seconds)s * interval '1 second'
        OR NOT EXISTS (SELECT 1 FROM jobqueue_job WHERE queue_id = q.name AND {IS_RUNNING})
        AND NOT EXISTS (
            SELECT 1 FROM jobqueue_queueminute m WHERE m.queue_id = q.name
                AND m.minute > {NOW} - (%(seconds)s + {COUNTED_LATE_SECONDS}) * interval '1 second'
                AND m.started + m.completed + m.failed + m.retried > 0)
        AND EXISTS (SELECT 1 FROM jobqueue_maintenance
            WHERE counted_until > {NOW} - {COUNTED_LATE_SECONDS} * interval '1 second'))
ORDER BY n.since LIMIT {MOST_AT_ONCE}
"""

# What a check has found, for each channel.
RECORD = f"""
INSERT INTO jobqueue_alert AS a (channel, kind, name, facts, latest_at)
SELECT c.channel, p.kind, p.name, p.facts::jsonb, p.latest_at
FROM unnest(%(kinds)s::text[], %(names)s::text[], %(facts)s::text[], %(latest)s::timestamptz[])
    p (kind, name, facts, latest_at) CROSS JOIN unnest(%(channels)s::text[]) c (channel)
ORDER BY c.channel, p.kind, p.name
ON CONFLICT (channel, kind, name) DO UPDATE SET facts = EXCLUDED.facts, latest_at = EXCLUDED.latest_at,
    seen_at = {NOW}, began_at = CASE WHEN a.over_at IS NULL OR a.is_told THEN a.began_at ELSE {NOW} END, over_at = NULL
"""

# What it has not found any more is over, except kinds of which it could not read all.
END = f"""
UPDATE jobqueue_alert a SET over_at = {NOW}
WHERE over_at IS NULL AND kind <> ALL(%(unread)s::text[]) AND NOT EXISTS (
    SELECT 1 FROM unnest(%(kinds)s::text[], %(names)s::text[]) p (kind, name) WHERE p.kind = a.kind AND p.name = a.name)
"""

# Claims what is to be told now: a problem that was not told yet, has become worse since the last alert or lasts for a
# day, at most once in an interval, and the end of a problem that was told. A stopped queue must be seen twice, because
# a queue that was just resumed looks like a stopped one.
CLAIM = f"""
UPDATE jobqueue_alert SET holder = %(holder)s, claimed_until = {NOW} + {CLAIM_SECONDS} * interval '1 second'
WHERE id IN (
    SELECT id FROM jobqueue_alert
    WHERE channel = %(channel)s AND (claimed_until > {NOW}) IS NOT TRUE AND (retry_at > {NOW}) IS NOT TRUE
        AND (over_at IS NOT NULL AND is_told
            OR over_at IS NULL AND (kind <> 'stopped' OR seen_at > began_at) AND (
                sent_at IS NULL
                OR sent_at <= {NOW} - %(every)s * interval '1 second' AND (NOT is_told OR latest_at > sent_at)
                OR sent_at <= {NOW} - {REMIND_SECONDS} * interval '1 second'))
    ORDER BY began_at, id LIMIT {MOST_AT_ONCE} FOR UPDATE SKIP LOCKED)
RETURNING id, kind, name, facts::text, began_at, seen_at, over_at
"""

DELIVERED = """
UPDATE jobqueue_alert a SET holder = NULL, claimed_until = NULL, failures = 0, retry_at = NULL, error = '',
    is_told = u.seen_at IS NOT NULL, sent_at = COALESCE(u.seen_at, a.sent_at)
FROM unnest(%(ids)s::bigint[], %(seen)s::timestamptz[]) u (id, seen_at)
WHERE a.id = u.id AND a.holder = %(holder)s
"""

NOT_DELIVERED = f"""
UPDATE jobqueue_alert SET holder = NULL, claimed_until = NULL, failures = failures + 1, error = %(error)s,
    retry_at = {NOW} + LEAST(%(every)s, {RETRY_SECONDS} * 2 ^ LEAST(failures, 10)) * interval '1 second'
WHERE id = ANY(%(ids)s) AND holder = %(holder)s
"""

# The rows of problems that are over for a day, and of channels that are not in the settings any more.
FORGET = f"""
DELETE FROM jobqueue_alert
WHERE over_at <= {NOW} - {REMIND_SECONDS} * interval '1 second' OR channel <> ALL(%(channels)s::text[])
"""
