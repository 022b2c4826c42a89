"""The server is lost under load: a standby takes over, with and without the last seconds, or it crashes and comes back.

``FAILOVER_RUNS=10`` runs each test ten times.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_project.postgres import Server

from .cluster import Cluster, started
from .failover import TIMINGS, Load, loaded, summary
from .proxy import Proxy
from .standby import ReplicatedCluster, kill, replicated
from .tracked import Findings, after

RUNS = int(os.environ.get("FAILOVER_RUNS") or 1)
LAG_SECONDS = 2.0
LATE_SECONDS = 1.5  # less than WORKER_FENCE_SECONDS: a worker cut off for longer ends its handlers by itself
STAYS_SECONDS = 2.0

pytestmark = [
    pytest.mark.parametrize("number", range(RUNS)),
    pytest.mark.usefixtures("database_allowed"),
]


@pytest.fixture
def database_allowed(django_db_blocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


def check_work(load: Load, findings: Findings, reconnected: float) -> None:
    """What must hold after every loss of the server."""
    assert not findings.stale, f"results of claims that the database does not hold: {findings.stale}"
    assert not findings.claims_run_twice, f"one claim, two runs: {findings.claims_run_twice}"
    overlaps = [*findings.job_overlaps, *findings.key_overlaps]
    assert not after(overlaps, reconnected), f"two handlers of a key at once after workers were back: {overlaps}"
    assert not findings.key_overlaps, f"two jobs of a key at once: {findings.key_overlaps}"
    assert not findings.job_overlaps, f"a job overlapped with itself: {findings.job_overlaps}"
    assert not findings.out_of_order, f"out of order: {findings.out_of_order}"
    assert not load.effects_not_once(), "what an atomic handler did is there once"
    assert not findings.charged(), f"charged for the loss of the server: {findings.charged()}"
    # Not much longer than keys wait after a promotion: a child that waits for handlers of lost claims must notice
    # their end, and not find it out by chance after ten seconds.
    assert load.slowest_to_resume(findings, reconnected) < TIMINGS["WORKER_UNLOCKED_SECONDS"] + 3


def test_a_synchronous_standby_loses_nothing_acknowledged(number: int, tmp_path: Path, seed: random.Random):  # G3 G19
    with replicated(synchronous=True) as cluster, loaded(cluster, tmp_path, seed) as load:
        load.wait_until_busy()

        lost = cluster.fail_over()

        reconnected = load.wait_until_reconnected(lost)
        load.run_for(1.0)
        findings = load.finish()
        print(summary(load, findings, reconnected))
        assert not findings.lost(load.sent()), "every job whose send was acknowledged is there"
        assert not findings.reopened(), "every completion that was acknowledged stays"
        check_work(load, findings, reconnected)


@pytest.mark.parametrize("version", (None, 16))
def test_a_standby_without_the_last_seconds_accepts_no_stale_result(
    number: int, version: int | None, tmp_path: Path, seed: random.Random
):  # G3 G19, F73
    with replicated(version=version) as cluster, loaded(cluster, tmp_path, seed) as load:
        load.wait_until_busy()
        # The standby has these jobs and will lack their claims, and their handlers outlive the promotion.
        load.send_delayed(LAG_SECONDS * 0.75, seconds=2.0)
        kept = cluster.hold_back()
        load.run_for(LAG_SECONDS)

        lost = cluster.fail_over()

        reconnected = load.wait_until_reconnected(lost)
        load.run_for(1.0)
        findings = load.finish()
        print(summary(load, findings, reconnected))
        assert findings.reopened(), "results were lost, or this has shown nothing"
        assert not findings.lost(load.sent(), before=kept), "what the standby had is there"
        assert not findings.reopened(before=kept), "what the standby had is there"
        check_work(load, findings, reconnected)


def test_keys_wait_for_a_worker_that_notices_the_promotion_late(
    number: int, tmp_path: Path, seed: random.Random
):  # G19, F73
    with (
        replicated() as cluster,
        Proxy(cluster.primary.port) as address,
        loaded(cluster, tmp_path, seed, right=address.port) as load,
    ):
        load.wait_until_busy()
        load.send_delayed(LAG_SECONDS * 0.4, seconds=LATE_SECONDS + 2.5, keys=16)  # work for every handler
        cluster.hold_back()
        load.run_for(LAG_SECONDS)

        lost = cluster.fail_over()
        load.run_for(LATE_SECONDS)  # handlers of lost claims go on in the worker that cannot know
        address.target = cluster.standby.port

        reconnected = load.wait_until_reconnected(lost)
        load.run_for(1.0)
        findings = load.finish()
        print(summary(load, findings, reconnected))
        check_work(load, findings, reconnected)


@pytest.mark.parametrize("version", (None, 16))
def test_a_crash_without_synchronous_commit_loses_no_claims_and_no_results(
    number: int, version: int | None, tmp_path: Path, seed: random.Random
):  # G3, F74
    with started(fsync=True, version=version, settings=LAZY) as cluster:
        cluster.sql("ALTER ROLE postgres SET synchronous_commit = off")
        with loaded(cluster, tmp_path, seed) as load:
            load.wait_until_busy()
            load.send_delayed(1.0, seconds=2.0)
            cluster.sql("CHECKPOINT")  # sends are not promised: these are on disk, and what follows is not
            load.run_for(1.5)

            lost = crash(cluster)

            reconnected = load.wait_until_reconnected(lost)
            load.run_for(1.0)
            findings = load.finish()
            print(summary(load, findings, reconnected))
            assert not findings.reopened(), "every completion that was acknowledged stays"
            check_work(load, findings, reconnected)


# A commit that does not wait is written when this much time has passed or this much WAL was gathered: as late as
# PostgreSQL allows. Only WAL that the server had not written yet is lost here, because the machine goes on.
LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "wal_buffers": "64MB"}


def crash(cluster: Cluster) -> float:
    """Kill the server and start it again; returns when it was killed."""
    killed = kill(cluster.server)
    cluster.server.start()
    return killed


def test_workers_stay_with_the_new_primary_when_the_old_one_comes_back(
    number: int, tmp_path: Path, seed: random.Random
):  # F93
    with replicated() as cluster, loaded(cluster, tmp_path, seed) as load:
        load.wait_until_busy()
        lost = cluster.fail_over()
        load.wait_until_reconnected(lost)

        cluster.rewind_old_primary()

        load.run_for(STAYS_SECONDS + 1.0)
        assert clients(cluster, cluster.primary) == 0, "its address comes first, but it refuses writes"
        assert clients(cluster, cluster.standby) > 4
        findings = load.finish()
        print(summary(load, findings, lost))
        assert not findings.unfinished()
        assert not findings.stale


def clients(cluster: ReplicatedCluster, server: Server) -> int:
    """How many clients stay with one of the two servers; one that is refused leaves at once."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        f" AND backend_start < clock_timestamp() - interval '{STAYS_SECONDS} seconds'"
    )
    return int(cluster.ask(server, query))
