"""Jobs that Spark's tasks have staged become jobs, all or none.

The statements are run by the data source of the pipeline, in a process where Django is not loaded; what they say is
decided here, beside the other verbs. ``{names}`` are filled in with quoted values.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..expressions import StatementTimestamp
from ..models import JobWrite, StagedJob
from ..options import JOB_OPTIONS
from ..policies import LANED, ORDERED, QueuePolicy
from ..states import Hold
from .statements import NOW
from .transactions import CHANNEL, database

KEEP_STAGED = timedelta(days=1)
KEEP_WRITES = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit runs, in this order, in one READ COMMITTED transaction; the last one after it."""

    begin: str
    look: str  # the queue's policy
    record: str  # no row comes back if this write was committed before
    count: str
    store: str
    stored: str  # how many jobs that made
    lanes: dict[str, str]  # policy → how {lane} is said
    tidy: str
    notify: str
    ordered: str = ORDERED  # the policy that needs a key


_STAGED = "jobqueue_stagedjob"
_OURS = f"FROM {_STAGED} s WHERE s.write = {{write}} AND (s.partition, s.attempt) IN ({{attempts}})"
_IS_LATER = f"due_at > {NOW}"
# A fresh id of version 7, whose beginning is the time: the primary key is then filled at its end.
_FRESH_ID = f"""(lpad(to_hex((extract(epoch FROM {NOW}) * 1000)::bigint), 12, '0') || '7'
        || lpad(to_hex(n % 4096), 3, '0') || '8' || substr(replace(gen_random_uuid()::text, '-', ''), 1, 15))::uuid"""
_INHERITED = ", ".join(JOB_OPTIONS)

# As send_many does it: numbered in the order asked for, and of the due rows of a lane only the one that goes first is
# born without a hold, which is safe because all commit together. Rows that exist already, by the id they were given, do
# not count, so they are left out before anybody is found to be first.
_STORE = f"""
WITH placed AS MATERIALIZED (
    SELECT s.*, row_number() OVER (ORDER BY s.number, s.real, s.text, s.partition, s.row) AS n {_OURS}),
fresh AS (
    SELECT p.*, p.job::uuid AS given,
        COALESCE(p.start_after, {NOW} + p.delay * interval '1 second') AS due_at,
        row_number() OVER (PARTITION BY p.job ORDER BY n) AS times
    FROM placed p
    WHERE p.job IS NULL OR NOT EXISTS (SELECT 1 FROM jobqueue_job j WHERE j.id = p.job::uuid)),
held AS (
    SELECT f.*, CASE WHEN {_IS_LATER} THEN '{Hold.UNTIL}' ELSE {{lane}} END AS hold
    FROM fresh f WHERE f.job IS NULL OR f.times = 1)
INSERT INTO jobqueue_job (id, queue_id, policy, name, priority, singleton_key, group_key, tags, data, hold, start_after,
    first_start_after, {_INHERITED})
SELECT COALESCE(given, {_FRESH_ID}), q.name, q.policy, COALESCE(h.name, ''), COALESCE(h.priority, 0),
    COALESCE(h.singleton_key, ''), COALESCE(h.group_key, ''), COALESCE(h.tags, '{{{{}}}}'), h.data::jsonb, h.hold,
    COALESCE(due_at, {NOW}), due_at, {", ".join(f"q.{name}" for name in JOB_OPTIONS)}
FROM held h JOIN jobqueue_queue q ON q.name = {{queue}} ORDER BY n
"""
_FIRST = "row_number() OVER (PARTITION BY COALESCE(f.singleton_key, ''), {later} ORDER BY {order})"


def _lane(policy: str) -> str:
    if policy not in LANED:
        return "NULL"
    order = "n" if policy == ORDERED else "COALESCE(f.priority, 0) DESC, n"
    first = _FIRST.format(later=f"COALESCE({_IS_LATER}, false)", order=order)
    return f"CASE WHEN {first} > 1 THEN '{Hold.LANE}' END"


COMMIT = Commit(
    begin="BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL work_mem = '128MB'",
    look="SELECT policy FROM jobqueue_queue WHERE name = {queue}",
    record="INSERT INTO jobqueue_jobwrite (id, queue, jobs) VALUES ({write}, {queue}, {number})"
    " ON CONFLICT DO NOTHING RETURNING id",
    count=f"SELECT count(*), count(*) FILTER (WHERE COALESCE(s.singleton_key, '') = '') {_OURS}",
    store=_STORE,
    stored="UPDATE jobqueue_jobwrite SET jobs = {stored} WHERE id = {write}",
    lanes={policy.value: _lane(policy) for policy in QueuePolicy},
    tidy=f"DELETE FROM {_STAGED} WHERE write = {{write}}",
    notify=f"SELECT pg_notify('{CHANNEL}', {{queue}})",
)


def forget_staged(*, using: str | None = None) -> int:
    """Delete rows that a write staged a day ago and nobody committed, and writes committed long ago; return how many.

    Called by maintenance.
    """
    using = database(using)
    staged = StagedJob.objects.using(using).filter(staged_at__lte=StatementTimestamp() - KEEP_STAGED)
    writes = JobWrite.objects.using(using).filter(committed_at__lte=StatementTimestamp() - KEEP_WRITES)
    return staged._raw_delete(using) + writes._raw_delete(using)
