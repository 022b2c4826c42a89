"""Turning the rows that Spark's tasks have staged into jobs, all or none.

The data source of the pipeline runs these statements, in a process without Django. They are here so that all statements
are in one place. ``{names}`` are replaced by quoted values.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ...expressions import NEXT_SEQ
from ...options import JOB_OPTIONS
from ...policies import LANED, ORDERED, QueuePolicy
from ...states import OCCUPIED, Hold, JobState
from .parts import NOW, listed
from .send import CHANNEL

SHOWN = 5  # jobs that a dry run shows


@dataclass(frozen=True, slots=True)
class Commit:
    """The statements of a commit, in one READ COMMITTED transaction; ``notify`` runs after it."""

    begin: str
    look: str  # the queue's policy
    record: str  # no row comes back if this write was committed before
    count: str
    store: str
    store_rows: str  # of files: those that were not sent before
    store_again: str  # of files: all of them
    store_rows_or_refuse: str  # the same two where the policy may have no place for a row
    store_again_or_refuse: str
    count_rows: str  # of files: how many would be sent, and which rows would be refused
    count_again: str  # the same if all of them are to be sent
    shown: str  # the first rows that would be sent stay staged
    refuse: str  # rows stay staged, for the sender to set them aside
    forget: str  # and can be sent another time
    stored: str  # how many jobs that made
    numbers: dict[str, str]  # column that says the order → how {n} is said
    lanes: dict[str, str]  # policy → how {lane} is said
    places: dict[str, str]  # policy → how {place} is said: whether it has one for a row
    tidy: str
    notify: str
    ordered: str = ORDERED  # the policy that needs a key, and has a place for every job
    standard: str = QueuePolicy.STANDARD  # the policy that has a place for every job without a key


_STAGED = "jobqueue_stagedjob"
_OURS = f"FROM {_STAGED} s WHERE s.write = {{write}} AND (s.partition, s.attempt) IN ({{attempts}})"
_IS_LATER = f"due_at > {NOW}"
# A new UUID of version 7: the time, the number of the job (12 and 20 bits of it), and 40 random bits. So the index of
# the primary key grows at its end.
_MOMENT = f"lpad(to_hex((extract(epoch FROM {NOW}) * 1000)::bigint), 12, '0')"
_FRESH_ID = f"""(q.moment || to_hex({0x7 << 36 | 0x8 << 20} + ((seq >> 20 & {0xFFF}) << 24) + (seq & {0xFFFFF}))
        || {{random}})::uuid"""
_INHERITED = ", ".join(JOB_OPTIONS)

# The order in which rows become jobs: by the column that says it, and rows that are equal there as they stand in their
# files or partitions. Without such a column the staged number is the order, so that nothing is sorted for it.
_NUMBERS = {
    **{
        column: f"row_number() OVER (ORDER BY s.{column}, s.place, s.partition, s.row)"
        for column in ("number", "real", "text")
    },
    "place": "s.place",
    "row": "(s.partition::bigint << 40) + s.row",
}
# The records of rows that were sent before are renewed from time to time, so that a file can grow for years.
_RENEWED = timedelta(days=10)
_IS_UNKNOWN = "NOT EXISTS (SELECT 1 FROM jobqueue_job j WHERE j.id = p.job::uuid)"

# Rows are ordered, identified and given their place in a lane by these few columns, so that a million of them can be
# sorted in memory; the wide columns are read at the end, by ctid.
_NARROW = "s.ctid AS at, s.row_id, s.job, s.singleton_key, s.priority, s.start_after, s.delay, {n} AS n"
_PLACED = f"WITH placed AS MATERIALIZED (SELECT {_NARROW} {_OURS})"

# Rows of files are identified by their identity, and equal rows by their number among them.
_TOLD_APART = f"""WITH placed AS MATERIALIZED (
    SELECT s.*,
        CASE WHEN times = 1 THEN row_hash ELSE md5(replace(row_hash::text, '-', '') || ' ' || times)::uuid END
            AS known_by
    FROM (SELECT *, row_number() OVER (PARTITION BY row_hash ORDER BY n) AS times
        FROM (SELECT {_NARROW}, s.identity::uuid AS row_hash {_OURS}) s) s
    ORDER BY row_hash, n)"""
# All calls store them in the same order, so that two concurrent calls cannot deadlock. The rows are in this order
# already: newer servers know that, and older ones sort rows that are sorted.
_REMEMBERED = f"""{_TOLD_APART},
remembered AS (
    INSERT INTO jobqueue_sentrow AS r (id, seen_at) SELECT known_by, {NOW} FROM placed ORDER BY row_hash, n
    ON CONFLICT (id) DO UPDATE SET seen_at = EXCLUDED.seen_at
        WHERE r.seen_at < {NOW} - interval '{_RENEWED.days} days'
    RETURNING id, r.xmax = 0 AS is_new)"""
# Usually all rows are new, and then no row needs to be looked up. The planner does not know how many rows there are; IS
# TRUE prevents it from comparing each row with each other.
_NEW = """((SELECT count(*) FILTER (WHERE is_new) FROM remembered) = (SELECT count(*) FROM placed)
        OR (p.known_by IN (SELECT id FROM remembered WHERE is_new)) IS TRUE)"""


def _store(beginning: str, condition: str = "true", *, refuse: bool = False) -> str:
    """The statement that stores the jobs, as send_many does.

    Jobs are numbered in the requested order. Of the due rows of a lane only the first is stored without a hold, which
    is safe because all are committed together. Rows whose given id exists already are left out before the first is
    determined.

    With ``refuse`` the statement returns the rows that the queue's policy refuses: first the number of jobs, then each
    of those rows and, if this write is the first that stores it, the id by which it is known. Without it they raise an
    error.
    """
    # No two rows of files have the same id, and the end of their identity is as good as random.
    of_files = beginning != _PLACED
    random = "substr(s.identity, 23)" if of_files else "substr(gen_random_uuid()::text, 27)"
    nth_of_id = "1" if of_files else "row_number() OVER (PARTITION BY p.job ORDER BY n)"
    rows = f"""{beginning},
target AS MATERIALIZED (SELECT *, {_MOMENT} AS moment FROM jobqueue_queue WHERE name = {{queue}}),
fresh AS (
    SELECT p.*, p.job::uuid AS given,
        COALESCE(p.start_after, {NOW} + p.delay * interval '1 second') AS due_at, {nth_of_id} AS nth_of_id
    FROM placed p WHERE (p.job IS NULL OR {_IS_UNKNOWN}) AND {condition}),
held AS (
    SELECT f.*, CASE WHEN {_IS_LATER} THEN '{Hold.UNTIL}' ELSE {{lane}} END AS hold
    FROM fresh f WHERE f.job IS NULL OR f.nth_of_id = 1),
numbered AS MATERIALIZED (
    SELECT at, row_id, given, due_at, hold, {"known_by, " if refuse else ""}{NEXT_SEQ} AS seq FROM held ORDER BY n)"""
    insert = f"""
INSERT INTO jobqueue_job (id, seq, position, queue_id, policy, name, priority, singleton_key, group_key, tags, data,
    hold, start_after, first_start_after, {_INHERITED})
SELECT COALESCE(given, {_FRESH_ID.format(random=random)}), seq, seq, q.name, q.policy,
    COALESCE(s.name, ''), COALESCE(s.priority, 0), COALESCE(s.singleton_key, ''), COALESCE(s.group_key, ''),
    COALESCE(s.tags, '{{{{}}}}'), {{data}}, h.hold,
    COALESCE(due_at, {NOW}), due_at, {", ".join(f"q.{name}" for name in JOB_OPTIONS)}
FROM numbered h JOIN {_STAGED} s ON s.ctid = h.at CROSS JOIN target q
"""
    if not refuse:
        return rows + insert
    return f"""{rows},
stored AS ({insert} ON CONFLICT DO NOTHING RETURNING seq)
SELECT count(*), NULL FROM stored UNION ALL
SELECT row_id, CASE WHEN {_NEW} THEN known_by::text END
FROM numbered p WHERE (seq IN (SELECT seq FROM stored)) IS FALSE
"""


# Keys are only told apart here, and compared as bytes that is quick in every database.
_FIRST = """row_number() OVER (PARTITION BY COALESCE(f.singleton_key, '') COLLATE "C", {later} ORDER BY {order})"""


def _lane(policy: str) -> str:
    if policy not in LANED:
        return "NULL"
    order = "n" if policy == ORDERED else "COALESCE(f.priority, 0) DESC, n"
    first = _FIRST.format(later=f"COALESCE({_IS_LATER}, false)", order=order)
    return f"CASE WHEN {first} > 1 THEN '{Hold.LANE}' END"


# The states in which a job prevents sends of other jobs of its key; see the unique indexes of the table.
_OCCUPYING = {
    QueuePolicy.STANDARD: OCCUPIED,
    QueuePolicy.EXCLUSIVE: OCCUPIED,
    QueuePolicy.SHORT: frozenset({JobState.CREATED}),
    QueuePolicy.STATELY: frozenset({JobState.CREATED}),
}


def _place(policy: QueuePolicy) -> str:
    if policy not in _OCCUPYING:
        return "true"
    key = "COALESCE(f.singleton_key, '')"
    free = f"""f.nth_of_key = 1 AND NOT EXISTS (SELECT 1 FROM jobqueue_job j
        WHERE j.queue_id = {{queue}} AND j.singleton_key = {key} AND j.state IN {listed(_OCCUPYING[policy])})"""
    return f"({key} = '' OR {free})" if policy == QueuePolicy.STANDARD else free


def _count(condition: str) -> str:
    """The answer of a dry run: the number of jobs, the rows that would be refused, then the first of the others."""
    return f"""{_TOLD_APART},
fresh AS (
    SELECT p.*, row_number() OVER (PARTITION BY COALESCE(p.singleton_key, '') ORDER BY n) AS nth_of_key
    FROM placed p WHERE (p.job IS NULL OR {_IS_UNKNOWN}) AND {condition}),
judged AS MATERIALIZED (SELECT row_id, n, {{place}} AS has_place FROM fresh f)
SELECT count(*), 'count' FROM judged WHERE has_place UNION ALL
SELECT row_id, 'refused' FROM judged WHERE NOT has_place UNION ALL
(SELECT row_id, 'shown' FROM judged WHERE has_place ORDER BY n LIMIT {SHOWN})
"""


COMMIT = Commit(
    begin="BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL work_mem = '128MB'",
    look="SELECT policy FROM jobqueue_queue WHERE name = {queue}",
    record="INSERT INTO jobqueue_jobwrite (id, queue, jobs) VALUES ({write}, {queue}, {number})"
    " ON CONFLICT DO NOTHING RETURNING id",
    count=f"SELECT count(*), count(*) FILTER (WHERE COALESCE(s.singleton_key, '') = '') {_OURS}",
    store=_store(_PLACED),
    store_rows=_store(_REMEMBERED, _NEW),
    store_again=_store(_REMEMBERED),
    store_rows_or_refuse=_store(_REMEMBERED, _NEW, refuse=True),
    store_again_or_refuse=_store(_REMEMBERED, refuse=True),
    refuse=f"UPDATE {_STAGED} SET write = {{refused}} WHERE row_id IN ({{some}})",
    forget="DELETE FROM jobqueue_sentrow WHERE id IN ({some})",
    count_rows=_count("NOT EXISTS (SELECT 1 FROM jobqueue_sentrow r WHERE r.id = p.known_by)"),
    count_again=_count("true"),
    shown=f"UPDATE {_STAGED} SET write = {{shown}} WHERE row_id IN ({{some}})",
    stored="UPDATE jobqueue_jobwrite SET jobs = {stored} WHERE id = {write}",
    numbers=_NUMBERS,
    lanes={policy.value: _lane(policy) for policy in QueuePolicy},
    places={policy.value: _place(policy) for policy in QueuePolicy},
    tidy=f"DELETE FROM {_STAGED} WHERE write = {{write}}",
    notify=f"SELECT pg_notify('{CHANNEL}', {{queue}})",
)
