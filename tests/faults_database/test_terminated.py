"""Sessions that an administrator, a failover or a pooler ends, one by one."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psycopg
import pytest
from django.db import connections

from .cluster import ALIAS
from .logs import most_talkative
from .runner import QUICK, Laboratory, until

TERMINATE = "SELECT pg_terminate_backend(%s)"
LISTENING = "LISTEN%"
KEEPERS = "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"


def test_sessions_ended_at_random_lose_nothing(lab: Laboratory, seed):  # G1 G2 G5, F21 F22
    worker = lab.worker(processes=2)
    family = worker.family()
    began = time.monotonic()
    lab.send("orders", keys=40, each=120, seconds=0.01)
    lab.send("ledger", keys=10, each=60, seconds=0.01, prefix="l")

    with lab.cluster.connect() as admin:
        while time.monotonic() - began < 6:
            victims = [pid for pid in lab.cluster.backends() if pid != admin.info.backend_pid]
            for pid in seed.sample(victims, min(len(victims), seed.randint(1, 3))):
                admin.execute(TERMINATE, [pid])
            time.sleep(seed.uniform(0.02, 0.3))  # the rhythm of the chaos, nothing waits for it

    lab.wait_until_done(40)
    lab.check()
    effects = lab.cluster.sql("SELECT job, count(*) FROM effect GROUP BY job HAVING count(*) <> 1")
    assert not effects, "what an atomic handler did is there once"
    assert lab.cluster.one("SELECT count(*) FROM effect") == 10 * 60
    assert worker.family() == family, "no process left"
    assert most_talkative(own_lines(worker), began, time.monotonic()) <= 1


def own_lines(worker):
    """What the worker says of itself; of a job that failed it says so each time."""
    return [line for line in worker.lines() if not line.text.startswith(("job failed", "claim lost"))]


def test_a_terminated_listener_listens_again_and_looks_at_once(lab: Laboratory):  # G13, F23
    lab.worker(settings={"POLL_SECONDS": 30.0})
    lab.send_one("orders", "step", key="a")
    until(lambda: lab.has_run(1), "the listener works")
    (listener,) = until(lambda: lab.cluster.backends(LISTENING), "it listens")

    sent = send_unseen(lab, 1)
    lab.cluster.sql(TERMINATE, [listener])
    ended = time.monotonic()

    until(lambda: [pid for pid in lab.cluster.backends(LISTENING) if pid != listener], "it listens again", 3)
    until(lambda: lab.has_run(sent), "the job that woke no worker runs", 3)
    assert lab.runs()[-1].began - ended < 2
    lab.send_one("orders", "step", sent, key="a")
    until(lambda: lab.has_run(sent + 1), "it is woken again", 3)


def send_unseen(lab: Laboratory, sent: int) -> int:
    """Send by hand, so that no worker is woken: only the look after listening again can find it.

    A worker that is still busy with the job before finds it at once; then another is sent. Returns how many were sent.
    """
    while True:
        lab.cluster.sql(
            "INSERT INTO jobqueue_job (id, queue_id, policy, name, data, singleton_key) VALUES"
            " (gen_random_uuid(), 'orders', 'key_strict_fifo', 'step', jsonb_build_object('n', %s::int), 'a')",
            [sent],
        )
        sent += 1
        lab.sent["a"] = sent
        try:
            until(lambda: lab.has_run(sent), "it was found at once", 1)  # noqa: B023
        except AssertionError:
            return sent


def test_a_keeper_whose_session_ends_keeps_its_children_alive(lab: Laboratory):
    worker = lab.worker(settings=QUICK)
    family = worker.family()
    lab.send("orders", keys=4, each=1, seconds=6)
    until(lambda: lab.has_run(4), "handlers run")

    ended, terminated = time.monotonic(), 0
    while time.monotonic() - ended < 3.5:  # longer than others would wait for it
        for pid in lab.cluster.sql(KEEPERS):
            lab.cluster.sql(TERMINATE, pid)
            terminated += 1
        time.sleep(0.5)

    lab.wait_until_done()
    assert terminated >= 2
    assert lab.check() == 0
    assert worker.family() == family
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    until(lambda: lab.cluster.one(locks) >= 1, "the session lock is held again", 3)


@pytest.mark.parametrize("table", ("orders", "work"))
def test_a_fetch_ended_half_way_claims_nothing_for_good(lab: Laboratory, table):  # F21
    """A trigger ends the session inside the very statement that claims, for the first three times."""
    lab.cluster.sql("CREATE SEQUENCE fetches")
    lab.cluster.sql(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('fetches') <= 3 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
        " RETURN NEW; END $$"
    )
    lab.cluster.sql(
        "CREATE TRIGGER die BEFORE UPDATE ON jobqueue_job FOR EACH ROW"
        " WHEN (NEW.state = 'active' AND OLD.state = 'created') EXECUTE FUNCTION die()"
    )
    try:
        lab.worker()
        lab.send(table, keys=5, each=4 if table == "orders" else 1)
        lab.wait_until_done()
        assert lab.check() == 0
        assert lab.cluster.one("SELECT max(attempt) FROM jobqueue_job") == 1, "what was rolled back left no trace"
    finally:
        lab.cluster.sql("DROP TRIGGER die ON jobqueue_job")
        lab.cluster.sql("DROP FUNCTION die; DROP SEQUENCE fetches")


def test_handlers_whose_session_ends_fail_and_are_tried_again(lab: Laboratory):
    lab.worker()
    lab.send("ledger", keys=4, each=1, seconds=2)
    until(lambda: lab.has_run(4), "handlers run in their transactions")

    for pid in lab.cluster.sql("SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'"):
        lab.cluster.sql(TERMINATE, pid)

    lab.wait_until_done()
    assert lab.check() == 4
    assert lab.cluster.one("SELECT count(*) FROM effect") == 4


def test_a_backend_killed_for_good_takes_all_sessions_with_it_and_workers_go_on(lab: Laboratory):  # F20
    worker = lab.worker(processes=2)
    family = worker.family()
    lab.send("orders", keys=20, each=40, seconds=0.01)
    until(lambda: lab.has_run(100), "work has begun")

    victim = until(lambda: lab.cluster.sql(KEEPERS), "its keeper is there")[0][0]
    connections[ALIAS].close()
    with lab.cluster.connect() as witness:
        os.kill(victim, signal.SIGKILL)
        until(lambda: not _answers(witness), "the server ends all sessions")
    until(lambda: _accepts(lab), "the server has recovered")
    lab.wait_until_done()
    assert lab.check() == 0
    assert worker.family() == family


def _answers(session: psycopg.Connection[tuple[Any, ...]]) -> bool:
    try:
        session.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def _accepts(lab: Laboratory) -> bool:
    try:
        lab.cluster.connect().close()
    except psycopg.OperationalError:
        return False
    return True
