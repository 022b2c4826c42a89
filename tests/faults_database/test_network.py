"""Cables that are cut, doors that open one way, routers that forget, and long ways."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .proxy import BOTH, Direction, Proxy
from .runner import QUICK, Laboratory, until

FENCE = QUICK["WORKER_FENCE_SECONDS"]
LOST = QUICK["WORKER_LOST_SECONDS"]
CUTS: dict[str, frozenset[Direction]] = {
    "both ways": BOTH,
    "only requests": frozenset({"requests"}),
    "only replies": frozenset({"replies"}),
}


@pytest.mark.parametrize("cut", CUTS)
def test_handlers_are_ended_before_another_worker_takes_their_jobs(lab: Laboratory, proxy: Proxy, cut):  # 40 and 41
    far = lab.worker("far", port=proxy.port, settings=QUICK)
    for key in ("a", "b", "c"):
        lab.send_one("orders", "step", 0, key=key, once=40)
        lab.send_one("orders", "step", 1, key=key)
    until(lambda: lab.has_run(3), "handlers run far away")
    lab.worker("near", settings=QUICK)

    proxy.swallow(CUTS[cut])
    silent = time.monotonic()

    until(lambda: lab.has_run(6), "another worker takes them", 25)
    first = [run for run in lab.runs() if run.n == 0 and run.attempt == 1]
    again = [run for run in lab.runs() if run.n == 0 and run.attempt == 2]
    assert max(run.ended for run in first) < min(run.began for run in again), "the first were ended before"
    assert max(run.ended for run in first) - silent < FENCE + 2
    assert min(run.began for run in again) - silent < LOST + 6
    assert any("lost contact" in line.text for line in far.lines()), "it says what it did"

    proxy.heal()

    until(lambda: far.rows() == 1, "the far worker is back", 10)
    lab.wait_until_done(40)
    assert lab.check() == 3


def test_a_worker_that_was_cut_off_works_again(lab: Laboratory, proxy: Proxy):  # F40
    worker = lab.worker(port=proxy.port, settings=QUICK)
    lab.send("orders", keys=3, each=1, seconds=0.5)
    until(lambda: lab.has_run(3), "it works")
    proxy.swallow()
    cut = time.monotonic()
    until(lambda: time.monotonic() - cut > LOST + 1, "it is cut off for long")

    proxy.heal()
    healed = time.monotonic()
    lab.send("orders", keys=3, each=1, prefix="b")

    lab.wait_until_done(20)
    assert time.monotonic() - healed < 12
    lab.check()
    assert worker.is_running()


def test_connections_that_a_router_forgot_are_given_up(lab: Laboratory, proxy: Proxy):  # F40
    """What exists is dead without a word, and stays so; what is new works."""
    worker = lab.worker(port=proxy.port, settings=QUICK)
    lab.send("orders", keys=2, each=1)
    until(lambda: lab.has_run(2), "it works")

    proxy.swallow(newcomers=False)
    forgotten = time.monotonic()
    lab.send("orders", keys=3, each=2, prefix="b")

    lab.wait_until_done(45)
    print(f"after {time.monotonic() - forgotten:.1f} seconds")
    lab.check()
    assert worker.is_running()


def test_a_transaction_left_open_by_a_vanished_worker_frees_its_keys(lab: Laboratory, proxy: Proxy):  # 41
    """Its session on the server waits in the middle of a transaction, with its locks, for a client that is gone."""
    far = lab.worker("far", port=proxy.port, settings=QUICK)
    cut = proxy.cut_at_commit("SET state = 'completed'", after=False, silently=True)
    lab.send("orders", keys=10, each=5)
    assert cut.done.wait(15)
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    assert lab.cluster.one(open_ones) == 1

    far.end()
    lab.worker("near", settings=QUICK)
    there = time.monotonic()

    lab.wait_until_done(25)
    assert time.monotonic() - there < LOST + 8, "not only after half a minute"
    lab.check()


def test_a_long_way_to_the_database_is_slow_and_no_death(lab: Laboratory, proxy: Proxy):  # F42
    proxy.delay = 0.15  # each way
    worker = lab.worker(port=proxy.port)
    family = worker.family()
    lab.worker("near")

    lab.send("orders", keys=10, each=3, seconds=0.1)

    lab.wait_until_done(50)
    assert lab.check() == 0
    assert worker.family() == family
    assert far_and_near(lab) == {0}, "nobody was given up"


def far_and_near(lab: Laboratory) -> set[int]:
    return {lab.cluster.one("SELECT count(*) FROM jobqueue_worker WHERE stopped_at IS NOT NULL")}


def test_an_outage_shorter_than_the_fence_ends_no_handler(lab: Laboratory, proxy: Proxy):  # F40
    worker = lab.worker(port=proxy.port)
    family = worker.family()
    lab.send("orders", keys=4, each=1, seconds=5)
    until(lambda: lab.has_run(4), "handlers run")

    proxy.swallow()
    cut = time.monotonic()
    until(lambda: time.monotonic() - cut > 4, "it is cut off for a while")
    proxy.heal()

    lab.wait_until_done(20)
    assert lab.check() == 0
    assert worker.family() == family


KEEPALIVE = "02"  # of the timers in /proc/net/tcp


def keepalive_seconds(port: int) -> list[float]:
    """When the kernel asks next whether the other side lives, of all connections that go to this port."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, _, timer, *_ = line.split()
        if int(remote.split(":")[1], 16) == port and state == "01":
            kind, _, when = timer.partition(":")
            found.append(int(when, 16) / 100 if kind == KEEPALIVE else float("inf"))
    return found


def test_idle_connections_of_a_worker_notice_a_vanished_server_within_seconds(lab: Laboratory, proxy: Proxy):  # 40
    """What a proxy cannot show, because its kernel always answers: that ours asks."""
    lab.worker(port=proxy.port)

    until(lambda: len(keepalive_seconds(proxy.port)) >= 3, "its processes are connected")
    until(lambda: max(keepalive_seconds(proxy.port)) < 6, "the kernel asks every few seconds")
