"""The database is there and refuses: locks, time limits, read-only, too many connections."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connections

from .cluster import ALIAS
from .logs import most_talkative
from .runner import QUICK, Laboratory, until


@pytest.fixture
def worker_role(lab: Laboratory):
    """A role of its own for workers, so that what is set for it does not hit the tests."""
    lab.cluster.sql("CREATE ROLE worker LOGIN SUPERUSER")
    yield "worker"
    lab.close()
    lab.cluster.sql("DROP ROLE worker")


def test_a_locked_row_is_passed_over(lab: Laboratory):  # F25
    locked = lab.send_one("orders", "step", key="a")
    with lab.cluster.connect() as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [locked])
        lab.worker()
        lab.send("orders", keys=10, each=5, prefix="b")

        until(lambda: lab.cluster.unfinished() == 1, "all others are done", 10)
        assert "a" not in {run.key for run in lab.runs()}
        other.execute("ROLLBACK")

    lab.wait_until_done(10)
    assert lab.check() == 0


def test_a_row_locked_while_its_job_ends_delays_nobody(lab: Laboratory):  # F25
    lab.worker()
    busy = lab.send_one("orders", "step", key="a", seconds=1)
    until(lambda: lab.has_run(1), "it runs")
    with lab.cluster.connect() as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [busy])
        until(lambda: lab.runs()[0].finished, "its handler has ended")
        lab.send("orders", keys=10, each=20, prefix="b")

        until(lambda: lab.cluster.unfinished() == 1, "all others are done", 15)
        other.execute("ROLLBACK")

    lab.wait_until_done(10)
    assert lab.check() == 0


def _lock_table(session: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Its parts are locked one after the other, in which a worker may come between."""
    session.execute("BEGIN")
    try:
        session.execute("LOCK TABLE jobqueue_job")
    except psycopg.errors.DeadlockDetected:
        session.execute("ROLLBACK")
        return False
    return True


@pytest.mark.parametrize("pooler", (False, True))
def test_a_locked_table_stops_work_and_ends_no_worker(lab: Laboratory, pooler):  # F25
    worker = lab.worker(settings={**QUICK, "POOLER": pooler})
    family = worker.family()
    lab.send("orders", keys=4, each=2, seconds=5)
    until(lambda: lab.has_run(4), "handlers run")
    with lab.cluster.connect() as other:
        until(lambda: _lock_table(other), "the table is locked")
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 7, "it is locked for longer than a worker may be silent")
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        assert other.execute(waiting).fetchone()[0] <= 4, "no pile-up"  # type: ignore[index]
        other.execute("ROLLBACK")

    lab.wait_until_done()
    assert lab.check() == 0, "no handler was ended"
    assert worker.family() == family
    assert most_talkative(worker.lines(), began, time.monotonic()) <= 1


def test_jobs_of_a_killed_child_come_back_although_somebody_had_one_locked(lab: Laboratory):  # G1
    worker = lab.worker(settings=QUICK)
    job = lab.send_one("orders", "step", key="a", seconds=3)
    until(lambda: lab.has_run(1), "it runs")
    with lab.cluster.connect() as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [job])
        os.kill(lab.runs()[0].pid, signal.SIGKILL)
        until(
            lambda: any(line.text.startswith("child ended unexpectedly") for line in worker.lines()), "its end is seen"
        )
        ended = time.monotonic()
        until(lambda: time.monotonic() - ended > 4, "it is locked for longer than a verb tries")
        other.execute("ROLLBACK")

    until(lambda: lab.has_run(2), "it runs again", 5)
    lab.wait_until_done(10)
    assert lab.check() == 1


def test_a_statement_timeout_set_for_the_role_does_not_stop_workers(lab: Laboratory, worker_role):  # F32
    lab.cluster.sql("ALTER ROLE worker SET statement_timeout = '1ms'")
    worker = lab.worker(user=worker_role, wait=False)
    began = time.monotonic()
    lab.send("orders", keys=5, each=4)
    until(lambda: time.monotonic() - began > 4, "some time is over")

    assert worker.is_running(), worker.output.read_text()
    assert most_talkative(worker.lines(), began, time.monotonic()) <= 1

    lab.cluster.sql("ALTER ROLE worker RESET statement_timeout")
    lab.cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'")
    lab.wait_until_done(15)
    assert lab.check() == 0


def test_through_a_pooler_a_statement_timeout_is_told_of_quietly_until_it_is_lifted(
    lab: Laboratory, worker_role
):  # F32
    """There workers set nothing for a session, so the limit hits them."""
    worker = lab.worker(user=worker_role, settings={**QUICK, "POOLER": True})
    family = worker.family()
    lab.cluster.sql("ALTER ROLE worker SET statement_timeout = '1ms'")
    lab.cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'")
    began = time.monotonic()
    lab.send("orders", keys=20, each=4)
    until(lambda: time.monotonic() - began > 4, "some time is over")
    assert most_talkative(worker.lines(), began, time.monotonic()) <= 1

    lab.cluster.sql("ALTER ROLE worker RESET statement_timeout")
    lab.cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'")
    lab.wait_until_done(15)
    lab.check()
    assert family.keys() & worker.family().keys(), "the supervisor lives"


def test_workers_wait_while_the_database_is_read_only(lab: Laboratory):  # F30
    worker = lab.worker(processes=2)
    family = worker.family()
    lab.send_one("orders", "step", key="a")
    lab.wait_until_done()
    read_only = "ALTER DATABASE postgres SET default_transaction_read_only = {}"
    disconnect = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname <> ''"
    )
    began = time.monotonic()
    lab.cluster.sql(read_only.format("on"))
    try:
        lab.cluster.sql(disconnect)
        connections[ALIAS].close()
        with pytest.raises(DatabaseError, match="read-only"):
            lab.send_one("orders", "step", 1, key="a")
        until(lambda: any("read-only" in str(line.facts) for line in worker.lines()), "it says why")
        until(lambda: time.monotonic() - began > 4, "some time is over")
    finally:
        with lab.cluster.connect() as admin:
            admin.execute("SET default_transaction_read_only = off")
            admin.execute(read_only.format("off"))
            admin.execute(disconnect)
            back = time.monotonic()
        connections[ALIAS].close()

    lab.send_one("orders", "step", 1, key="a")
    lab.wait_until_done(10)
    assert time.monotonic() - back < 8
    assert worker.family() == family, "no process left"
    assert most_talkative(worker.lines(), began, time.monotonic()) <= 1


def test_workers_wait_while_no_connection_is_to_be_had(lab: Laboratory, worker_role):  # F31
    worker = lab.worker(user=worker_role)
    family = worker.family()
    lab.cluster.sql("ALTER ROLE worker NOSUPERUSER CONNECTION LIMIT 0")  # which does not hold for superusers
    lab.cluster.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO worker")
    lab.cluster.sql("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO worker")
    began = time.monotonic()
    lab.cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'")
    lab.send("orders", keys=5, each=4)
    until(lambda: any("too many connections" in str(line.facts) for line in worker.lines()), "it says why")
    until(lambda: time.monotonic() - began > 3, "some time is over")

    lab.cluster.sql("ALTER ROLE worker CONNECTION LIMIT -1")
    free = time.monotonic()

    lab.wait_until_done(10)
    assert lab.runs()[0].began - free < 5
    assert lab.check() == 0
    assert worker.family() == family
    assert most_talkative(worker.lines(), began, time.monotonic()) <= 1
    lab.close()
    lab.cluster.sql("DROP OWNED BY worker")
