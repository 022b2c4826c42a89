"""Settings of transactions: isolation, planning, durability and timeouts; and values that a session can read."""

from __future__ import annotations

# Statistics about the queues and states of the job table are never up to date. So frequent statements run with these
# settings off, and the planner uses the index that has the requested order.
PLAN = ("enable_sort", "enable_seqscan", "enable_hashjoin", "enable_mergejoin")
# For transactions of django_jobqueue's own. With the generic plan a prepared statement is planned once, not per call.
OWN_PLAN = {**dict.fromkeys(PLAN, "off"), "plan_cache_mode": "force_generic_plan"}
# If a crash of the server lost a claim or a result, a job could run twice. So these commits are durable, whatever the
# project uses for its own. PostgreSQL reads the setting at the commit.
DURABLE = (
    "CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END"
)
MAKE_DURABLE = f"SELECT {DURABLE}"
BEGIN_AT_ONCE = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SELECT "
    + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in OWN_PLAN.items())
    + f", {DURABLE}",
)
BEGIN = "; ".join(BEGIN_AT_ONCE)
PLAN_ON = "SELECT " + ", ".join(f"current_setting('{n}'), set_config('{n}', 'off', true)" for n in PLAN)
PLAN_OFF = "SELECT " + ", ".join(f"set_config('{name}', %s, true)" for name in PLAN)

# For statements that do not lock rows first: they wait only briefly for rows that another transaction has locked.
WAIT_BRIEFLY = "SELECT set_config('lock_timeout', '50ms', true)"
SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %(limit)s, true)"
# Returns the previous limit, so that the caller's limit can be restored.
SWAP_LOCK_TIMEOUT = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
SWAP_STATEMENT_TIMEOUT = "SELECT current_setting('statement_timeout'), set_config('statement_timeout', %s, true)"
SWAP_SETTINGS = (
    "SELECT s.name, current_setting(s.name), set_config(s.name, s.value, true)"
    " FROM unnest(%s::text[], %s::text[]) AS s (name, value)"
)

# The database's clock: the time of this statement, the current time, and the seconds until a moment.
MOMENT = "SELECT statement_timestamp()"
CLOCK = "SELECT clock_timestamp()"
CLOCK_SECONDS = "SELECT extract(epoch FROM clock_timestamp())"
SECONDS_UNTIL = "SELECT extract(epoch FROM %s - statement_timestamp())"

SERVER_STARTED_AT = "SELECT pg_postmaster_start_time()"
SNAPSHOT = "SELECT pg_current_snapshot()::text"
SHOWN = "SELECT pg_current_snapshot()::text, statement_timestamp()"
NEXT_XID = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
