"""A transaction pooler before the database, or no notifications: only the latency differs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from example_project.postgres import _identity, free_port, give_away

from .cluster import Cluster, has_program
from .proxy import Proxy
from .runner import QUICK, Laboratory, until

needs_pgbouncer = pytest.mark.skipif(not has_program("pgbouncer"), reason="PgBouncer is not installed")
POOLERS = ["proxy", pytest.param("pgbouncer", marks=needs_pgbouncer)]
POOLED = {**QUICK, "POOLER": True}


@contextmanager
def pgbouncer(cluster: Cluster, *, pool_size: int = 4) -> Iterator[int]:
    folder = cluster.server.folder / "pgbouncer"
    folder.mkdir()
    port = free_port()
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\npostgres = user=postgres host=127.0.0.1 port={cluster.server.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {folder}/users.txt\npool_mode = transaction\ndefault_pool_size = {pool_size}\n"
        "max_client_conn = 200\n"
        f"ignore_startup_parameters = extra_float_digits\nlogfile = {folder}/log\n"
    )
    give_away(folder)
    process = subprocess.Popen(
        ["pgbouncer", "-q", str(folder / "pgbouncer.ini")], stdin=subprocess.DEVNULL, **_identity()
    )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


@pytest.fixture(params=POOLERS)
def pooler(request: pytest.FixtureRequest, cluster: Cluster, lab: Laboratory) -> Iterator[int]:
    """The port of a pooler that gives no transaction the session of the one before."""
    if request.param == "pgbouncer":
        with pgbouncer(cluster) as port:
            until(lambda: _answers(cluster, port), "the pooler answers")
            yield port
            lab.close()
    else:
        with Proxy(cluster.server.port, pooling=True) as proxy:
            yield proxy.port
            lab.close()


def _answers(cluster: Cluster, port: int) -> bool:
    try:
        psycopg.connect(cluster.dsn(port=port)).close()
    except psycopg.OperationalError:
        return False
    return True


def test_everything_works_through_a_transaction_pooler(lab: Laboratory, pooler):  # G13, F33
    worker = lab.worker(port=pooler, settings=POOLED, processes=2)
    family = worker.family()

    lab.send("orders", keys=20, each=30, seconds=0.002)
    lab.send("ledger", keys=5, each=10, prefix="l")
    lab.send("work", keys=50, each=1, prefix="w")
    talk = [lab.send_one("talk", "reply", n) for n in range(5)]

    lab.wait_until_done()
    assert lab.check() == 0
    assert len(talk) == 5
    assert lab.cluster.one("SELECT count(*) FROM effect") == 50
    assert not lab.cluster.backends("%LISTEN%"), "no session listens"
    held = lab.cluster.one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    assert held == 0, "no session lock is left in the pool"
    assert lab.cluster.one("SELECT bool_or(has_session_lock) FROM jobqueue_worker") is False
    assert worker.family() == family
    assert worker.stop() == 0


def test_through_a_pooler_jobs_of_a_worker_that_vanished_are_recovered(lab: Laboratory, pooler):  # G4
    first = lab.worker("first", port=pooler, settings=POOLED)
    for key in ("a", "b", "c"):
        lab.send_one("orders", "step", key=key, once=40)
    until(lambda: lab.has_run(3), "handlers run")
    lab.worker("second", port=pooler, settings=POOLED)

    first.end()
    gone = time.monotonic()

    until(lambda: lab.has_run(4), "they run elsewhere", 15)
    assert time.monotonic() - gone < POOLED["WORKER_LOST_SECONDS"] + 6
    lab.wait_until_done()
    assert lab.check() == 3


@pytest.mark.parametrize("settings", ({"NOTIFY": False}, {"NOTIFY": True}))
def test_notifications_only_change_the_latency(lab: Laboratory, settings: dict[str, Any]):  # G13
    lab.worker(settings={**settings, "POLL_SECONDS": 1.0})
    if settings["NOTIFY"]:
        until(lambda: lab.cluster.backends("LISTEN%"), "it listens")

    waits = []
    for n in range(5):
        sent = time.monotonic()
        lab.send_one("orders", "step", n, key="a")
        until(lambda n=n: lab.has_run(n + 1), "it runs", 5)  # type: ignore[misc]
        waits.append(lab.runs()[n].began - sent)

    lab.wait_until_done()
    assert lab.check() == 0
    assert max(waits) < 2.5
    if settings["NOTIFY"]:
        assert sorted(waits)[2] < 0.3, f"a wake-up is quicker than a poll: {waits}"


def test_a_worker_that_may_not_listen_polls(lab: Laboratory, cluster: Cluster):  # G13
    """Behind a pooler that is not configured: notifications do not arrive, sessions change, and jobs still run."""
    with Proxy(cluster.server.port, pooling=True) as proxy:
        worker = lab.worker(port=proxy.port, settings=QUICK)
        lab.send("orders", keys=10, each=10)

        lab.wait_until_done()
        assert lab.check() == 0
        assert worker.is_running()
        lab.close()


def test_the_pooler_of_the_laboratory_forgets_sessions(cluster: Cluster):
    """Or the tests above would prove nothing."""
    with Proxy(cluster.server.port, pooling=True) as proxy, cluster.connect(port=proxy.port) as connection:
        first = connection.execute("SELECT pg_backend_pid()").fetchone()
        connection.execute("SET application_name = 'mine'")
        assert connection.execute("SHOW application_name").fetchone() != ("mine",)
        assert connection.execute("SELECT pg_backend_pid()").fetchone() != first
