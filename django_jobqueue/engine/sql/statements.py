"""Every statement that the ORM cannot say, or says measurably slower, by name.

They are plain constants, so that a plan can be explained and a reader finds all locking in one place. Times are the
database's, and ``statement_timestamp()`` rather than ``now()``, because in a long transaction ``now()`` stands still.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ...expressions import SEQUENCE
from ...policies import LANED, ONE_RUNNING, ORDERED, DelayedHead, QueuePolicy
from ...states import BLOCKING, DEAD, ELIGIBLE, FINAL, RETRYING, RUNNING, Hold, JobState, leads_to

LEAF = "JOBS_OF_QUEUE"  # stands for the part of the job table that the queue lies in
CLAIM_COLUMNS = "CLAIMED_COLUMNS"  # stands for what a claim returns

# What a claimed job carries, and what a worker needs of it when nobody else sees it: to read all costs a third more.
CLAIMED = (
    "id", "queue_id", "name", "state", "policy", "attempt", "retry_count", "retry_limit", "priority", "seq",
    "singleton_key", "group_key", "tags", "assignee", "data", "expire_in_seconds", "heartbeat_seconds",
    "created_at", "started_at", "assigned_at", "expire_at", "crashes", "carried",
)  # fmt: skip
NEEDED = ("id", "name", "attempt", "singleton_key", "data", "expire_in_seconds", "crashes", "carried")


@lru_cache(maxsize=2048)
def at(leaf: str, statement: str, claimed: tuple[str, ...] = CLAIMED) -> str:
    """The statement for one part of the job table, with these columns of what it claims.

    Rows are found again by ctid, which counts within a part. And no statistics are ever right about the queues and
    states of a queue's table: where a statement named the whole table and the queue, the planner, once it believed
    that the queue was empty, read all of it for each batch.
    """
    columns = ", ".join(f"j.{name}" for name in claimed)
    return statement.replace(LEAF, leaf).replace(CLAIM_COLUMNS, f"-j.priority, j.position, j.ctid, {columns}")


# For the same reason hot statements run with these: they leave the planner the index that has the order asked for.
PLAN = ("enable_sort", "enable_seqscan", "enable_hashjoin", "enable_mergejoin")
# In transactions of our own; and a statement that has a name is planned once, not for the values of each call.
OWN_PLAN = {**dict.fromkeys(PLAN, "off"), "plan_cache_mode": "force_generic_plan"}
# A claim or a result that a crash of the server forgets would run a job again while it runs, so these commits are
# durable, whatever the project has chosen for its own. PostgreSQL reads the setting at the commit.
DURABLE = (
    "CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END"
)
BEGIN_AT_ONCE = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SELECT "
    + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in OWN_PLAN.items())
    + f", {DURABLE}",
)
BEGIN = "; ".join(BEGIN_AT_ONCE)
PLAN_ON = "SELECT " + ", ".join(f"current_setting('{n}'), set_config('{n}', 'off', true)" for n in PLAN)
PLAN_OFF = "SELECT " + ", ".join(f"set_config('{name}', %s, true)" for name in PLAN)


def listed(values: Iterable[str]) -> str:
    return "(" + ", ".join(f"'{value}'" for value in sorted(str(value) for value in values)) + ")"


NOW = "statement_timestamp()"
IS_ELIGIBLE = f"state IN {listed(ELIGIBLE)}"
IS_FETCHABLE = f"{IS_ELIGIBLE} AND hold IS NULL"
IS_BLOCKING = f"state IN {listed(BLOCKING)} AND policy = '{ORDERED}'"
IS_BLOCKED_KEY = f"state IN {listed(DEAD)} AND policy = '{ORDERED}'"
IS_RUNNING = f"state IN {listed(RUNNING)}"
HAS_ONE_RUNNING = f"policy IN {listed(ONE_RUNNING)}"
IN_LANE = f"policy = '{ORDERED}' AND state = '{JobState.CREATED}'"

# --------------------------------------------------------------------------------------------------- sending

# The queue's row is read by the same statement that stores the job: no cache to go stale, no second round trip.
# {columns} are those this send gives a value to; what the job inherits comes from the queue. No row comes back when
# there is no such queue, when an ordered queue got no key, or when the id or the policy's slot is taken; the
# transaction stays usable in each case.
SEND = """
INSERT INTO jobqueue_job (queue_id, policy, {columns})
SELECT q.name, q.policy, {values} FROM jobqueue_queue q WHERE q.name = %s AND {condition}
{on_conflict}
RETURNING {returning}
"""
# Jobs that no constraint can refuse go in without ON CONFLICT, which would look into every unique index first. Only of
# the two common policies: to be asked for several takes the planner longer than the rarer ones would gain.
NEVER_REFUSED = f"q.policy = '{QueuePolicy.STANDARD}'"
NEVER_REFUSED_WITH_KEY = f"q.policy = '{ORDERED}'"
HAS_ITS_KEY = f"(q.policy <> '{ORDERED}' OR %s)"
UNLESS_ID_EXISTS = "NOT EXISTS (SELECT 1 FROM jobqueue_job j WHERE j.id = %s)"
START_AFTER = f"COALESCE(%s::timestamptz, {NOW} + %s * interval '1 second')"
HOLD_UNTIL = f"CASE WHEN {START_AFTER} > {NOW} THEN '{Hold.UNTIL}' END"
THROTTLE_SLOT = f"%s || ':' || floor(extract(epoch FROM {NOW}) / %s)"

# The primary key refuses an id twice within a queue only, because it must contain the column of the partitions. So a
# sender that brings an id locks it, and looks in all queues by a later statement, because the snapshot of the locking
# one is older than the lock. The text in front keeps these locks apart from those of keys and workers.
ID_HASH = "hashtextextended('jobqueue id ' || {id}::text, 0)"
LOCK_ID = f"SELECT pg_advisory_xact_lock({ID_HASH.format(id='%s::uuid')})"
# Returns the ids that a job has, and locks the others. An id that is taken is not locked: a transaction that sends many
# known ids would make others wait for nothing, and could deadlock with one that sends them in another order. A stricter
# transaction locks nothing, because its later statements see nothing new.
LOCK_FREE_IDS = f"""
WITH given AS MATERIALIZED (
    SELECT g.id, {ID_HASH.format(id="g.id")} AS hash,
        (SELECT true FROM jobqueue_job j WHERE j.id = g.id LIMIT 1) AS is_taken
    FROM unnest(%s::uuid[]) g(id) ORDER BY hash)
SELECT id FROM given WHERE CASE WHEN is_taken THEN true
    WHEN current_setting('transaction_isolation') = 'read committed' THEN pg_advisory_xact_lock(hash) IS NULL
    ELSE false END
"""

INSERT_OTHERS = "INSERT INTO jobqueue_job ({columns}) VALUES {values} ON CONFLICT DO NOTHING RETURNING id"
NUMBERS = f"SELECT nextval('{SEQUENCE}'::regclass) FROM generate_series(1, %s)"
SEND_MANY = "COPY jobqueue_job ({columns}) FROM STDIN"

# Not by functions: these two need no planner, who would take a fifth of the time.
NOTIFY = "SET LOCAL synchronous_commit = off; NOTIFY {channel}, {queue}"

# -------------------------------------------------------------------------------------------------- fetching

LOOK_AT_QUEUE = """
SELECT policy, partition, paused_at IS NOT NULL, current_setting('transaction_isolation')
FROM jobqueue_queue WHERE name = %s
"""
# The same beside a claim, with whether a lease ran out.
LOOK_BESIDE = f"""
SELECT policy, partition, paused_at IS NOT NULL, (SELECT lease_until <= {NOW} FROM {LEAF}
    WHERE queue_id = q.name AND state = '{JobState.ACTIVE}' AND lease_until IS NOT NULL ORDER BY lease_until LIMIT 1)
FROM jobqueue_queue q WHERE name = %s
"""

# The earliest of each, by the index that has it: asked whether one exists, the planner would read the table for it.
LOOK_AT_TIMES = f"""
SELECT (SELECT start_after <= {NOW} FROM {LEAF} WHERE queue_id = %s AND hold = '{Hold.UNTIL}'
        ORDER BY start_after LIMIT 1),
    (SELECT lease_until <= {NOW} FROM {LEAF}
        WHERE queue_id = %s AND state = '{JobState.ACTIVE}' AND lease_until IS NOT NULL
        ORDER BY lease_until LIMIT 1)
"""

RELEASE_DUE = f"""
WITH due AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE queue_id = %s AND hold = '{Hold.UNTIL}' AND start_after <= {NOW}
    ORDER BY start_after LIMIT %s FOR UPDATE SKIP LOCKED)
UPDATE {LEAF} j SET hold = NULL FROM due WHERE j.ctid = due.tid
"""

# For those who read all queues: by the age of what lies in front; also those where nothing does, because something may
# have become due.
QUEUES_BY_AGE = f"""
SELECT q.name FROM jobqueue_queue q LEFT JOIN LATERAL (
    SELECT position FROM jobqueue_job WHERE queue_id = q.name AND {IS_FETCHABLE}
    ORDER BY priority DESC, position LIMIT 1) front ON true
WHERE q.paused_at IS NULL ORDER BY front.position NULLS LAST, q.name
"""

CANDIDATE = f"{LEAF}.ctid AS tid, id, singleton_key, state, seq, priority, position"

# First a bounded look along the order, then the index of tags: each alone would be slow where the other is quick
# (many jobs with other tags in front; many jobs with these tags in all). ``queue_id || ''`` keeps the planner from
# reading along the queue again instead.
TAGGED_IN_FRONT = f"""
WITH front AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF} WHERE queue_id = %s AND {IS_FETCHABLE}
    ORDER BY priority DESC, position LIMIT %s)
SELECT {CANDIDATE} FROM front JOIN {LEAF} ON {LEAF}.ctid = front.tid
WHERE {IS_FETCHABLE} AND tags @> %s::text[] AND NOT singleton_key = ANY(%s::text[])
ORDER BY priority DESC, position LIMIT %s FOR UPDATE OF {LEAF} SKIP LOCKED
"""
TAGGED = f"""
WITH tagged AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE {IS_FETCHABLE} AND tags @> %s::text[] AND NOT tags = '{{}}' AND queue_id || '' = %s)
SELECT {CANDIDATE} FROM tagged JOIN {LEAF} ON {LEAF}.ctid = tagged.tid
WHERE {IS_FETCHABLE} AND NOT id = ANY(%s::uuid[]) AND NOT singleton_key = ANY(%s::text[])
    AND (priority, -position) < (%s, %s)
ORDER BY priority DESC, position LIMIT %s FOR UPDATE OF {LEAF} SKIP LOCKED
"""

_CLAIM = f"""
SET state = '{JobState.ACTIVE}', hold = NULL, attempt = j.attempt + 1, assignee = %s, incarnation = %s,
    claim_number = %s, assigned_at = {NOW}, started_at = COALESCE(j.started_at, {NOW}),
    expire_at = {NOW} + j.expire_in_seconds * interval '1 second',
    heartbeat_at = CASE WHEN j.heartbeat_seconds IS NOT NULL THEN {NOW} END,
    lease_until = {NOW} + %s * interval '1 second',
    progress = NULL, progress_text = '',
    claim_xmin = COALESCE(j.claim_xmin, {{xmin}})
"""

# Jobs that wait for nobody are picked and claimed by one statement; {candidates} comes from the ORM and locks what it
# picks. Found again by ctid and not by id: with the states of a queue no statistics are ever right, and once the
# planner believes that nothing is eligible it reads the whole table for a join by id. What is locked cannot move.
PICK_AND_CLAIM = f"""
WITH {{candidates}}
UPDATE {LEAF} j {_CLAIM.format(xmin="NULL")}
WHERE j.ctid = ANY(ARRAY(SELECT tid FROM picked))
RETURNING {CLAIM_COLUMNS}
"""

CLAIM = f"""
UPDATE {LEAF} j {_CLAIM.format(xmin="%s")}
WHERE j.ctid = ANY(%s::tid[])
RETURNING {CLAIM_COLUMNS}
"""

# Of each group the rows are claimed in their order, up to the first that somebody else has locked or taken: a plain
# reader asks nobody for the group.
CLAIM_GROUPED = f"""
WITH picked AS MATERIALIZED (
    SELECT u.key, u.place, p.tid FROM unnest(%s::text[], %s::int[], %s::tid[]) u(key, place, tid)
    LEFT JOIN LATERAL (
        SELECT ctid AS tid FROM {LEAF} WHERE ctid = u.tid AND {IS_FETCHABLE} LIMIT 1 FOR UPDATE SKIP LOCKED) p ON true),
going AS MATERIALIZED (
    SELECT tid FROM (
        SELECT tid, bool_and(tid IS NOT NULL) OVER (PARTITION BY key ORDER BY place) AS goes FROM picked) cut
    WHERE goes)
UPDATE {LEAF} j {_CLAIM.format(xmin="NULL")}, grouped = true
FROM going WHERE j.ctid = going.tid
RETURNING {CLAIM_COLUMNS}
"""

# ----------------------------------------------------------------------------------------------------- lanes

KEY_HASH = "hashtextextended({key}, hashtextextended({queue}, 0))"

TRY_KEYS = f"""
SELECT k.key, pg_try_advisory_xact_lock({KEY_HASH.format(key="k.key", queue="%s")}),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint
FROM unnest(%s::text[]) k(key)
"""

WAIT_FOR_KEYS = f"""
SELECT pg_advisory_xact_lock(h) FROM (
    SELECT DISTINCT {KEY_HASH.format(key="k.key", queue="k.queue")} AS h
    FROM unnest(%s::text[], %s::text[]) k(queue, key) ORDER BY 1) sorted
"""


# Who goes first in a lane of an ordered queue? With 'pass' a job that is not due does not count; with 'block' it does.
# One probe per kind of hold, never one OR: that would read the lane. ``ORDER BY hold, seq`` is the index's order. And
# each probe is a subquery of its own: an EXISTS would become a join that reads all blocking rows of the queue.
def _lowest(hold: str, columns: str = "seq") -> str:
    return (
        f"SELECT {columns} FROM {LEAF} WHERE queue_id = %(queue)s AND {IN_LANE} AND singleton_key = k.key"
        f" AND hold {hold} ORDER BY hold, seq LIMIT 1"
    )


# The first of a lane in the order of that index: one that is held for the lane, else one that is not due, else one that
# can go. So who has seen one that can go need not look for the others.
_PLACE = "ctid AS tid, seq, priority"
_FIRST = (
    f"SELECT {_PLACE}, hold FROM {LEAF} WHERE queue_id = %(queue)s AND {IN_LANE} AND singleton_key = k.key"
    " ORDER BY hold, seq LIMIT 1"
)

_BLOCKS = f"(SELECT delayed_head = '{DelayedHead.BLOCK}' FROM jobqueue_queue WHERE name = %(queue)s)"
_BLOCKED = f"(SELECT true FROM {LEAF} WHERE queue_id = %(queue)s AND {IS_BLOCKING} AND singleton_key = k.key LIMIT 1)"
# The first that is not due, where that one counts.
_LATER = f"""(SELECT CASE WHEN {_BLOCKS} THEN ({_lowest(f"= '{Hold.UNTIL}'")}) END)"""
# Due, but its hold is not yet lifted: it counts, and it goes before any later job of its key.
_OVERDUE = f"""(SELECT true FROM {LEAF} WHERE queue_id = %(queue)s AND policy = '{ORDERED}' AND hold = '{Hold.UNTIL}'
        AND singleton_key = k.key AND start_after <= {NOW} AND state = '{JobState.CREATED}' AND seq < k.seq
        ORDER BY start_after LIMIT 1)"""

_ANY_DUE = f"""(SELECT start_after <= {NOW} FROM {LEAF} WHERE queue_id = %(queue)s AND hold = '{Hold.UNTIL}'
        ORDER BY start_after LIMIT 1)"""  # asked once, so that the question above is mostly not asked for each key

# Who blocks, who is first and who is due are asked in one statement, because a hold that is lifted between two would be
# seen by neither: held for the first, and not overdue for the second.
LOOK_AT_LANES = f"""
SELECT k.key, k.blocked, k.seq, (CASE WHEN NOT k.blocked AND {_ANY_DUE} THEN {_OVERDUE} END) IS NOT NULL
FROM (SELECT k.key, {_BLOCKED} IS NOT NULL AS blocked,
        CASE WHEN first.hold IS NULL THEN first.seq ELSE
            LEAST(CASE WHEN first.hold = '{Hold.LANE}' THEN first.seq END, ({_lowest("IS NULL")}), {_LATER}) END AS seq
    FROM unnest(%(keys)s::text[]) k(key) LEFT JOIN LATERAL ({_FIRST}) first ON true OFFSET 0) k
"""

LOOK_AT_RUNNING = f"""
SELECT k.key, EXISTS (SELECT 1 FROM {LEAF} WHERE queue_id = %(queue)s AND policy = %(policy)s
    AND singleton_key = k.key AND {IS_RUNNING})
FROM unnest(%(keys)s::text[]) k(key)
"""

HOLD_CANDIDATES = f"""
UPDATE {LEAF} SET hold = '{Hold.LANE}' WHERE ctid = ANY(%s::tid[])
"""

# A blocked lane is held as a whole, so that a thousand jobs behind one failure cost one look and not a thousand.
# Rows that another fetch looks at are left to it: waiting for them could deadlock.
HOLD_LANES = f"""
WITH waiting AS MATERIALIZED (
    SELECT ctid AS tid FROM {LEAF}
    WHERE queue_id = %s AND {IN_LANE} AND singleton_key = ANY(%s) AND hold IS NULL
    LIMIT %s FOR UPDATE SKIP LOCKED)
UPDATE {LEAF} j SET hold = '{Hold.LANE}' FROM waiting WHERE j.ctid = waiting.tid
"""

# Who goes next in each of these lanes is whoever was seen first, if it can go. If not, it is the lower of that one and
# the first that can go, unless one that is not due goes before both.
_SEEN = f"SELECT k.key, first.* FROM unnest(%(keys)s::text[]) k(key) CROSS JOIN LATERAL ({_FIRST}) first"
_OTHER_GOES = f"(k.hold = '{Hold.UNTIL}' OR free.seq < k.seq)"


def _lower(column: str) -> str:
    return f"CASE WHEN {_OTHER_GOES} THEN free.{column} ELSE k.{column} END"


_HEAD_OF_HELD = f"""
    SELECT k.key, {_lower("tid")} AS tid, {_lower("seq")} AS seq, {_lower("priority")} AS priority
    FROM seen k LEFT JOIN LATERAL ({_lowest("IS NULL", _PLACE)}) free ON true
    WHERE k.hold IS NOT NULL AND {_lower("seq")} < COALESCE({_LATER}, 9223372036854775807)
"""

# Lifts the hold of the job that goes next in each of these lanes, if there is one. Needs the locks of the keys, taken
# by an earlier statement: looking and locking in one statement would look with the old snapshot. Returns the lanes in
# which a job waits, and whether its row was left because another transaction has locked it. The row is found again by
# its id, because a version that this statement's snapshot does not show may have been locked.
RELEASE_LANES = f"""
WITH seen AS MATERIALIZED ({_SEEN}),
head AS MATERIALIZED ({_HEAD_OF_HELD} AND {_OTHER_GOES} IS NOT TRUE AND {_BLOCKED} IS NULL),
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

# Lanes that could not be released by the transaction that ended a job of theirs.
REMEMBER_LANES = """
INSERT INTO jobqueue_pendingrelease (queue, policy, singleton_key)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]) RETURNING id
"""
PENDING_IDS = "SELECT id FROM jobqueue_pendingrelease WHERE queue = COALESCE(%s, queue) ORDER BY id"
PENDING_LANES = """
SELECT id, queue, policy, singleton_key FROM jobqueue_pendingrelease WHERE id = ANY(%s) ORDER BY id
FOR UPDATE SKIP LOCKED
"""
FORGET_LANES = "DELETE FROM jobqueue_pendingrelease WHERE id = ANY(%s)"
_IS_PENDING = """(SELECT true FROM jobqueue_pendingrelease p WHERE p.queue = %(queue)s AND p.singleton_key = k.key
        LIMIT 1)"""

# -------------------------------------------------------------------------------------------------- finishing

_COMPLETE = f"""state = '{JobState.COMPLETED}', hold = NULL, output = {{output}}::jsonb, finalized_at = {NOW},
    delete_at = CASE WHEN j.delete_after_seconds > 0 THEN {NOW} + j.delete_after_seconds * interval '1 second' END,
    lease_until = NULL, crashes = 0, error = '', reason = '', fingerprint = ''"""
_CLAIMS = """SELECT * FROM unnest(%s::tid[], %s::uuid[], %s::int[], %s::bigint[], %s::text[])
    WITH ORDINALITY c(tid, id, attempt, number, output, place)"""
# In lanes only where nobody else has the key; who is next in them is then looked for by another statement.
_CLAIMS_LANED = f"""SELECT *, pg_try_advisory_xact_lock({KEY_HASH.format(key="c.key", queue="%s")}) AS ours
    FROM unnest(%s::tid[], %s::uuid[], %s::int[], %s::bigint[], %s::text[], %s::text[])
    WITH ORDINALITY c(tid, id, attempt, number, output, key, place)"""

# Each job where its claim put it and in the state it has had since, as nearly all are. They are not locked before the
# update, which would cost a sixth more: so it waits for whoever has locked one of them, and is told to wait briefly.
# The state must be no constant to the planner, who would else read all that runs, by its index, for each job.
WAIT_BRIEFLY = "SELECT set_config('lock_timeout', '50ms', true)"
# Here the number of the claim says the attempt too, because no two fetches draw the same; one array less is read.
_COMPLETE_HERE = f"""
UPDATE {LEAF} j SET {_COMPLETE.format(output="u.output")}
FROM (SELECT *, '{JobState.ACTIVE}' AS state FROM ({{claims}}) claims OFFSET 0) u
WHERE j.ctid = u.tid AND j.id = u.id AND j.claim_number = u.number AND j.state = u.state AND {{ours}}
RETURNING u.place, u.state
"""


def _without_attempts(claims: str) -> str:
    return claims.replace("%s::int[], ", "").replace("attempt, ", "")


COMPLETE_HERE = _COMPLETE_HERE.format(claims=_without_attempts(_CLAIMS), ours="true")
COMPLETE_HERE_LANED = _COMPLETE_HERE.format(claims=_without_attempts(_CLAIMS_LANED), ours="u.ours")

# What that left: each is looked for there too, and else, because its row was written since, by its own probe of the
# primary key (a LATERAL with a LIMIT cannot be reordered, see above). One that somebody else has locked is left out, so
# that one open transaction does not stall a batch.
_IS_CLAIM = f"""id = u.id AND attempt = u.attempt AND (u.number IS NULL OR claim_number = u.number)
            AND state IN {listed(leads_to(JobState.COMPLETED))}"""
_COMPLETE_ANYWHERE = f"""
WITH u AS MATERIALIZED ({{claims}}),
mine AS MATERIALIZED (
    SELECT COALESCE(here.tid, moved.tid) AS tid, COALESCE(here.state, moved.state) AS state, u.output, u.place FROM u
    LEFT JOIN LATERAL (SELECT ctid AS tid, state FROM {LEAF} WHERE ctid = u.tid AND {_IS_CLAIM}
        LIMIT 1 FOR UPDATE SKIP LOCKED) here ON true
    LEFT JOIN LATERAL (SELECT ctid AS tid, state FROM {LEAF} WHERE here.tid IS NULL AND {_IS_CLAIM}
        LIMIT 1 FOR UPDATE SKIP LOCKED) moved ON true
    WHERE {{ours}})
UPDATE {LEAF} j SET {_COMPLETE.format(output="mine.output")}
FROM mine WHERE j.ctid = mine.tid
RETURNING mine.place, mine.state
"""
COMPLETE = _COMPLETE_ANYWHERE.format(claims=_CLAIMS, ours="true")
COMPLETE_LANED = _COMPLETE_ANYWHERE.format(claims=_CLAIMS_LANED, ours="u.ours")

# One job, found by its primary key, which needs no help from the planner's settings. A row that had to be waited for is
# looked at again by PostgreSQL itself, as it is then.
COMPLETE_ONE = f"""
UPDATE {LEAF} j SET {_COMPLETE.format(output="%s")}
WHERE id = %s AND attempt = %s AND (%s::bigint IS NULL OR claim_number = %s)
    AND state IN {listed(leads_to(JobState.COMPLETED))}
RETURNING {DURABLE}
"""

# Finishing hands the lane over: the next job becomes active in the transaction that ended the one before it, if nobody
# with a higher priority waits elsewhere in the queue and nothing due in the lane goes first. Only for lanes whose
# blocking job was ended by this transaction: there can be no other, so that nobody needs to look for one. Like the
# completion before it, it locks nothing first where it was told to wait briefly, and tells the planner no state.
_HAND_OVER = f"""
WITH seen AS MATERIALIZED ({_SEEN}),
head AS MATERIALIZED (SELECT key, tid, seq, priority FROM seen WHERE hold IS NULL UNION ALL {_HEAD_OF_HELD}),
next AS MATERIALIZED (
    SELECT k.tid FROM head k {{locked}}
    WHERE k.priority >= COALESCE((
            SELECT priority FROM {LEAF} WHERE queue_id = %(queue)s AND {IS_FETCHABLE}
            ORDER BY priority DESC, position LIMIT 1), -2147483648)
        AND (SELECT paused_at IS NULL FROM jobqueue_queue WHERE name = %(queue)s)
        AND ({_ANY_DUE} IS NOT TRUE OR {_OVERDUE} IS NULL))
UPDATE {LEAF} j
SET state = '{JobState.ACTIVE}', hold = NULL, attempt = j.attempt + 1, assignee = %(worker)s,
    incarnation = %(incarnation)s, claim_number = %(number)s, assigned_at = {NOW},
    started_at = COALESCE(j.started_at, {NOW}),
    expire_at = {NOW} + j.expire_in_seconds * interval '1 second',
    heartbeat_at = CASE WHEN j.heartbeat_seconds IS NOT NULL THEN {NOW} END, lease_until = NULL,
    progress = NULL, progress_text = '',
    claim_xmin = COALESCE(j.claim_xmin, pg_snapshot_xmin(pg_current_snapshot())::text::bigint)
WHERE j.ctid = ANY(ARRAY(SELECT tid FROM next))
    AND j.state = (SELECT '{JobState.CREATED}'::text) AND j.tags @> %(tags)s::text[]
RETURNING {CLAIM_COLUMNS}
"""
HAND_OVER_HERE = _HAND_OVER.format(locked="")
HAND_OVER = _HAND_OVER.format(
    locked=f"CROSS JOIN LATERAL (SELECT FROM {LEAF} WHERE ctid = k.tid LIMIT 1 FOR UPDATE SKIP LOCKED) l"
)

# Every other change of state, for rows that are locked already; what a change leaves alone is null. An attempt that
# did not succeed is appended to the job's history, of which the last fifty are kept. New positions are drawn before the
# join, in the order of the changes, because the join may visit the rows in any.
MOVE = f"""
WITH u AS MATERIALIZED (
    SELECT *, CASE WHEN behind THEN nextval('{SEQUENCE}'::regclass) END AS position
    FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::float8[], %s::int[], %s::int[], %s::bool[], %s::int[],
        %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
    c(id, queue, state, delay, charge, more_retries, behind, crashes, error, reason, note, data, fingerprint, outcome))
UPDATE jobqueue_job j
SET state = u.state,
    moved_xid = pg_current_xact_id()::text::bigint,
    hold = CASE WHEN u.state NOT IN {listed(ELIGIBLE)} THEN NULL WHEN u.delay > 0 THEN '{Hold.UNTIL}' END,
    start_after = COALESCE({NOW} + u.delay * interval '1 second', j.start_after),
    retry_count = j.retry_count + u.charge,
    retry_limit = j.retry_limit + u.more_retries,
    last_retry_at = CASE WHEN u.charge > 0 THEN {NOW} ELSE j.last_retry_at END,
    attempt_finished_at = CASE WHEN u.outcome IS NULL THEN j.attempt_finished_at ELSE {NOW} END,
    cancel_requested_at = CASE WHEN u.state = '{JobState.CANCELLING}' THEN COALESCE(j.cancel_requested_at, {NOW})
        ELSE j.cancel_requested_at END,
    finalized_at = CASE WHEN u.state IN {listed(FINAL)} THEN {NOW} END,
    delete_at = CASE WHEN u.state NOT IN {listed(FINAL)} OR (u.state IN {listed(DEAD)} AND j.policy = '{ORDERED}')
            THEN NULL
        WHEN u.state IN {listed(DEAD)} AND j.delete_failed_after_seconds > 0
            THEN {NOW} + j.delete_failed_after_seconds * interval '1 second'
        WHEN u.state NOT IN {listed(DEAD)} AND j.delete_after_seconds > 0
            THEN {NOW} + j.delete_after_seconds * interval '1 second' END,
    lease_until = NULL, grouped = NULL,
    position = COALESCE(u.position, j.position),
    crashes = COALESCE(u.crashes, j.crashes),
    error = COALESCE(u.error, j.error),
    reason = COALESCE(u.reason, j.reason),
    note = COALESCE(u.note, j.note),
    data = COALESCE(u.data::jsonb, j.data),
    fingerprint = COALESCE(u.fingerprint, j.fingerprint),
    attempts = CASE WHEN u.outcome IS NULL THEN j.attempts ELSE
        (CASE WHEN jsonb_array_length(j.attempts) >= 50 THEN j.attempts - 0 ELSE j.attempts END)
        || jsonb_build_object('attempt', j.attempt, 'worker', j.assignee, 'started', j.assigned_at, 'ended', {NOW},
            'outcome', u.outcome, 'error', right(u.error, 4000), 'fingerprint', COALESCE(u.fingerprint, '')) END
FROM u WHERE j.id = u.id AND j.queue_id = u.queue
RETURNING j.id, j.start_after, {DURABLE}
"""

# A copy for the dead-letter queue, if it still exists: with the job's own retry and retention, under its key only
# where that queue is ordered.
DEAD_LETTER = f"""
INSERT INTO jobqueue_job (id, queue_id, policy, name, priority, group_key, tags, data, retry_limit, retry_delay,
    retry_backoff, retry_delay_max, expire_in_seconds, heartbeat_seconds, retention_seconds, delete_after_seconds,
    delete_failed_after_seconds, singleton_key, source_id, source_queue, source_key, carried)
SELECT u.copy, d.name, d.policy, j.name, j.priority, j.group_key, j.tags, j.data, j.retry_limit, j.retry_delay,
    j.retry_backoff, j.retry_delay_max, j.expire_in_seconds, j.heartbeat_seconds, j.retention_seconds,
    j.delete_after_seconds, j.delete_failed_after_seconds,
    CASE WHEN d.policy = '{ORDERED}' THEN COALESCE(NULLIF(j.singleton_key, ''), j.queue_id) ELSE '' END,
    j.id, j.queue_id, j.singleton_key, j.carried
FROM unnest(%s::uuid[], %s::uuid[]) u(id, copy)
JOIN jobqueue_job j ON j.id = u.id
JOIN jobqueue_queue q ON q.name = j.queue_id
JOIN jobqueue_queue d ON d.name = q.dead_letter_id
ON CONFLICT DO NOTHING
RETURNING queue_id, source_id
"""

# The job of the same stately key that already waits for its retry.
RETRYING_BESIDE = f"""
SELECT j.id, o.id FROM unnest(%s::uuid[]) u(id) JOIN jobqueue_job j ON j.id = u.id
JOIN jobqueue_job o ON o.queue_id = j.queue_id AND o.policy = '{QueuePolicy.STATELY}' AND o.id <> j.id
    AND o.singleton_key = j.singleton_key AND o.state IN {listed(RETRYING)}
"""

# Since when it could have been started counts for statistics and for the order audit.
RESCHEDULE = f"""
UPDATE jobqueue_job SET start_after = %(moment)s,
    first_start_after = CASE WHEN state = '{JobState.CREATED}' THEN %(moment)s ELSE first_start_after END,
    hold = CASE WHEN %(moment)s::timestamptz > {NOW} THEN '{Hold.UNTIL}' END
WHERE id = %(id)s AND queue_id = %(queue)s
"""

# ---------------------------------------------------------------------------------------------- maintenance

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
IS_TO_DELETE = "delete_at IS NOT NULL"
IS_UNTIL = f"hold = '{Hold.UNTIL}'"
IS_LANE = f"hold = '{Hold.LANE}'"
IS_RETRYING = f"state IN {listed(RETRYING)}"
IS_LEASED = f"state = '{JobState.ACTIVE}' AND lease_until IS NOT NULL"

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


# How much waits, by queue, hold and, if {state} asks for it, state: read along the indexes of what waits, of each no
# further than so many rows. Without the state the indexes alone can tell. What an ordered queue holds lies in the index
# of its lanes, whatever its hold.
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

# The law of lanes: who waits for a lane waits for somebody. Which that may be, depends on the policy. Lanes are looked
# at one by one, leaping from key to key, so that it costs the number of lanes and not of the jobs in them.
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
    WHEN held.seq IS NULL OR {_BLOCKED} IS NOT NULL OR ({_lowest("IS NULL")}) IS NOT NULL THEN false
    ELSE COALESCE(held.seq < {_LATER}, true) AND {_IS_PENDING} IS NULL END),
    '{{{{}}}}'::text[])
FROM k LEFT JOIN LATERAL ({_lowest(f"= '{Hold.LANE}'")}) held ON true WHERE k.key IS NOT NULL
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
    AND {_IS_PENDING} IS NULL), '{{{{}}}}'::text[])
FROM k WHERE k.key IS NOT NULL
"""

# What was deleted, counted by lane, because whoever waited in those may go now.
PURGE = f"""
WITH gone AS (DELETE FROM jobqueue_job WHERE queue_id = %(queue)s AND (%(state)s::text IS NULL OR state = %(state)s)
    RETURNING policy, singleton_key, {IS_BLOCKED_KEY} AS blocked)
SELECT policy, CASE WHEN policy IN {listed(LANED)} THEN singleton_key ELSE '' END, bool_or(blocked), count(*)
FROM gone GROUP BY 1, 2
"""
