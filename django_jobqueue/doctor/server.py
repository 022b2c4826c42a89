"""The server: old transactions, dead rows, its clock, a pooler in front of it, and settings that can lose data."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from django.db import DatabaseError, connections

from ..conf import get_settings
from ..engine.databases import execute, rows
from .findings import Finding, Level, Limits, ago, could_not_look, in_autocommit

# ------------------------------------------------------------------------------------------------- old transactions

# Only sessions of this database keep its dead rows. A role without pg_read_all_stats sees no times of other users.
SESSIONS = """
SELECT pid, usename, application_name, state, extract(epoch FROM clock_timestamp() - xact_start)::float8,
    left(query, 500), backend_xid IS NOT NULL
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND xact_start < clock_timestamp() - %s * interval '1 second'
ORDER BY xact_start LIMIT %s
"""
PREPARED = """
SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - %s * interval '1 second'
ORDER BY prepared LIMIT %s
"""
HOLDS = "While it is open, dead rows cannot be removed, and every fetch has to read past more of them."


def open_transactions(using: str, limits: Limits) -> Iterator[Finding]:
    for pid, user, application, state, age, query, writes in rows(
        using, SESSIONS, [limits.transaction_seconds, limits.listed]
    ):
        who = f"user {user!r}{f', {application}' if application else ''}"
        locks = " It has written, so it may also hold locks." if writes else ""
        yield Finding(
            "open_transaction",
            _how_bad(age, limits),
            f"A transaction has been open for {ago(age)} (pid {pid})",
            f"{who}, {state}. {HOLDS}{locks} Its last query: {query}",
            f"SELECT pg_terminate_backend({pid});",
            {"pid": pid, "user": user, "application": application, "state": state, "seconds": age, "query": query},
            using,
        )


def prepared_transactions(using: str, limits: Limits) -> Iterator[Finding]:
    for gid, owner, age in rows(using, PREPARED, [limits.transaction_seconds, limits.listed]):
        yield Finding(
            "prepared_transaction",
            _how_bad(age, limits),
            f"A prepared transaction has been open for {ago(age)} ({gid})",
            f"Owner {owner!r}. {HOLDS} It outlives restarts: only COMMIT PREPARED or ROLLBACK PREPARED ends it.",
            f"ROLLBACK PREPARED '{gid}';",
            {"gid": gid, "owner": owner, "seconds": age},
            using,
        )


def _how_bad(age: float, limits: Limits) -> Level:
    return Level.ERROR if age > 6 * limits.transaction_seconds > 0 else Level.WARNING


def hidden_sessions(using: str, limits: Limits) -> Iterator[Finding]:
    hidden = rows(
        using,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND backend_type IS NULL AND usename <> current_user",
    )[0][0]
    if hidden:
        user = rows(using, "SELECT quote_ident(current_user)")[0][0]
        yield Finding(
            "hidden_sessions",
            Level.NOTICE,
            "Sessions of other users cannot be seen",
            f"There are {hidden:,}. Their old transactions cannot be found.",
            f"GRANT pg_read_all_stats TO {user};",
            {"sessions": hidden},
            using,
        )


# -------------------------------------------------------------------------------------------------------- dead rows

TABLES = """
SELECT c.oid::regclass::text, pg_stat_get_live_tuples(c.oid), pg_stat_get_dead_tuples(c.oid),
    GREATEST(pg_stat_get_last_autovacuum_time(c.oid), pg_stat_get_last_vacuum_time(c.oid)),
    current_setting('autovacuum')::bool AND COALESCE((SELECT option_value::bool FROM pg_options_to_table(c.reloptions)
        WHERE option_name = 'autovacuum_enabled'), true),
    current_setting('autovacuum')::bool
FROM pg_class c
WHERE c.relkind = 'r' AND (c.oid = ANY(%s::regclass[])
    OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'jobqueue_job'::regclass))
ORDER BY 3 DESC
"""


def dead_rows(using: str, limits: Limits) -> Iterator[Finding]:
    for table, live, dead, vacuumed, is_on, is_on_for_others in rows(using, TABLES, [_tables()]):
        facts = {"table": table, "live_rows": live, "dead_rows": dead, "last_vacuum": vacuumed}
        if dead >= limits.dead_rows and dead >= limits.dead_share * live:
            when = "never" if vacuumed is None else f"last at {vacuumed:%Y-%m-%d %H:%M:%S %Z}"
            yield Finding(
                "dead_rows",
                Level.WARNING,
                f"{table} has {dead:,} dead rows",
                f"It has {live:,} live rows; it was vacuumed {when}. Autovacuum does not keep up, or an old "
                "transaction prevents it from removing dead rows. Every scan has to read past them.",
                f"VACUUM (ANALYZE) {table};",
                facts,
                using,
                sql=(f"VACUUM (ANALYZE) {table}",),
            )
        if not is_on:
            yield _autovacuum_off(using, table, facts, is_on_for_others)


def _autovacuum_off(using: str, table: str, facts: dict[str, Any], on: bool) -> Finding:
    reset = f"ALTER TABLE {table} RESET (autovacuum_enabled)"
    everywhere = "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf();"
    return Finding(
        "autovacuum_off",
        Level.WARNING,
        f"Autovacuum is off for {table}",
        "Its dead rows are not removed, and every attempt of a job leaves some.",
        f"{reset};" if on else everywhere,
        facts,
        using,
        sql=(reset,) if on else (),
    )


def _tables() -> list[str]:
    from django.apps import apps

    models = apps.get_app_config("jobqueue").get_models(include_auto_created=True)
    return sorted({model._meta.db_table for model in models if not model._meta.proxy})


# ------------------------------------------------------------------------------------------------- clock and pooler


def clock(using: str, limits: Limits) -> Iterator[Finding]:
    execute(using, "SELECT 1")  # the first statement of a session takes longer
    before = datetime.now(tz=UTC)
    server = rows(using, "SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
    skew = clock_skew(before, datetime.fromtimestamp(server, tz=UTC), datetime.now(tz=UTC))
    if abs(skew) > limits.clock_seconds:
        yield Finding(
            "clock_skew",
            Level.WARNING,
            f"The clock of this machine differs from the server's by {abs(skew):,.1f} s",
            f"It is {'behind' if skew > 0 else 'ahead'}. Due times, leases and retries use the server's clock and are "
            "not affected. Times that your code computes (start_after=…, logs) are wrong by this difference.",
            "Synchronize both with a time server: timedatectl set-ntp true",
            {"seconds": skew},
            using,
        )


def clock_skew(before: datetime, server: datetime, after: datetime) -> float:
    """By how many seconds the server is ahead, at least: it read its clock at some time between our two readings."""
    if server > after:
        return (server - after) / timedelta(seconds=1)
    return min((server - before) / timedelta(seconds=1), 0.0)


def pooler(using: str) -> list[Finding]:
    """Whether connections go through a pooler although ``POOLER`` is off."""
    if get_settings().POOLER:
        return []
    try:
        signs = _signs_of_a_pooler(using)
    except DatabaseError as error:
        return [could_not_look("pooler", using, error)]
    if not signs:
        return []
    shares = "lost_session" in signs
    return [
        Finding(
            "pooler",
            Level.ERROR if shares else Level.WARNING,
            "Connections go through a pooler",
            f"{' '.join(signs.values())} "
            + (
                "It gives each transaction another session, so LISTEN and session locks are lost."
                if shares
                else "If it pools transactions, LISTEN and session locks are lost. If it pools sessions, they work."
            ),
            "Set JOBQUEUE['POOLER'] = True, or connect workers to the server directly.",
            {"signs": sorted(signs)},
            using,
        )
    ]


def _signs_of_a_pooler(using: str) -> dict[str, str]:
    signs = {}
    connections[using].ensure_connection()
    announced_pid = connections[using].connection.info.backend_pid
    pids = {rows(using, "SELECT pg_backend_pid()")[0][0]}
    if in_autocommit(using):
        token = uuid4().hex
        execute(using, "SELECT set_config('django_jobqueue.doctor', %s, false)", [token])
        query = "SELECT pg_backend_pid(), current_setting('django_jobqueue.doctor', true)"
        answers = [rows(using, query)[0] for _ in range(3)]
        execute(using, "SELECT set_config('django_jobqueue.doctor', '', false)")
        pids |= {pid for pid, _ in answers}
        if len(pids) > 1 or any(kept != token for _, kept in answers):
            signs["lost_session"] = "Settings of the session are lost between transactions."
    if announced_pid not in pids:  # a pooler sends a pid of its own, with which clients cancel queries
        signs["other_pid"] = f"The connection was told pid {announced_pid}, but its statements run in pid {min(pids)}."
    return signs


# -------------------------------------------------------------------------------------------- notifications, safety


def notifications(using: str, limits: Limits) -> Iterator[Finding]:
    share = float(rows(using, "SELECT pg_notification_queue_usage()")[0][0])
    if share > limits.notify_share:
        yield Finding(
            "notify_queue",
            Level.ERROR if share > 0.9 else Level.WARNING,
            f"The server's queue of notifications is {share:.0%} full",
            "A session that listens has a transaction open and does not end it. When the queue is full, NOTIFY fails: "
            "sends still succeed, but workers find jobs by polling only.",
            "SELECT pid, query FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' ORDER BY xact_start; "
            "then pg_terminate_backend(pid) for the session that listens.",
            {"share": share},
            using,
        )


SAFETY = {
    "fsync": "A crash of the machine can destroy the whole database.",
    "full_page_writes": "A crash of the machine can leave torn pages, which go unnoticed.",
    "synchronous_commit": "A crash can lose the last commits: sent jobs, and outcomes of jobs, which then run again.",
}


def durability(using: str, limits: Limits) -> Iterator[Finding]:
    names = list(SAFETY)
    switched_off = rows(
        using, "SELECT name, setting FROM pg_settings WHERE name = ANY(%s) AND setting = 'off'", [names]
    )
    for name, _ in sorted(switched_off):
        yield Finding(
            f"{name}_off",
            Level.NOTICE,
            f"{name} is off",
            SAFETY[name],
            f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            {"setting": name},
            using,
        )


LOOKS = (open_transactions, prepared_transactions, hidden_sessions, dead_rows, clock, notifications, durability)
