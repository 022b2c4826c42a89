"""The connection breaks around a COMMIT, so that the worker cannot know whether it happened."""

from __future__ import annotations

import pytest

from .proxy import Proxy
from .runner import Laboratory, until

CLAIM = "SET state = 'active'"
COMPLETE = "SET state = 'completed'"


@pytest.mark.parametrize("after", (True, False))
@pytest.mark.parametrize("queue", ("orders", "work"))
def test_jobs_whose_claim_was_not_confirmed_run_once_and_soon(lab: Laboratory, proxy: Proxy, queue, after):  # F21
    worker = lab.worker(port=proxy.port)
    family = worker.family()
    cut = proxy.cut_at_commit(CLAIM, after=after)

    lab.send(queue, keys=10, each=5 if queue == "orders" else 1)

    assert cut.done.wait(10)
    lab.wait_until_done(10)
    assert lab.check() == 0, "handlers of the lost claim never began, so nothing ran twice"
    assert lab.cluster.one("SELECT max(retry_count) FROM jobqueue_job") == 0
    assert worker.family() == family


@pytest.mark.parametrize("after", (True, False))
def test_a_batch_with_hand_over_whose_answer_is_lost_is_finished_once(lab: Laboratory, proxy: Proxy, after):  # F22
    worker = lab.worker(port=proxy.port)
    family = worker.family()
    cut = proxy.cut_at_commit(COMPLETE, after=after, times=3)

    lab.send("orders", keys=5, each=30, seconds=0.002)

    assert cut.done.wait(10)
    lab.wait_until_done(15)
    assert lab.check() == 0, "a result that was not confirmed is written again, not worked for again"
    assert not any(line.text.startswith("claim lost") for line in worker.lines()), "it was not, it is our own result"
    assert lab.cluster.active() == 0
    assert worker.family() == family


@pytest.mark.parametrize("after", (True, False))
def test_what_an_atomic_handler_did_is_there_once(lab: Laboratory, proxy: Proxy, after):  # F22
    worker = lab.worker(port=proxy.port)
    family = worker.family()
    cut = proxy.cut_at_commit("INSERT INTO effect", after=after, times=4)

    lab.send("ledger", keys=4, each=10)

    assert cut.done.wait(10)
    lab.wait_until_done(15)
    repeated = lab.check()
    assert repeated == (0 if after else 4), "committed jobs do not run again, the others do"
    assert lab.cluster.one("SELECT count(*) FROM effect") == 40
    assert lab.cluster.one("SELECT count(DISTINCT job) FROM effect") == 40
    assert worker.family() == family


def test_connections_cut_at_any_byte_lose_nothing(lab: Laboratory, proxy: Proxy, seed):  # F21 F22 F41
    worker = lab.worker(port=proxy.port)
    family = worker.family()
    lab.send("orders", keys=10, each=60, seconds=0.005)
    lab.send("ledger", keys=4, each=20, prefix="l")

    for _ in range(25):
        proxy.cut_after(seed.randint(1, 40_000))
        until(lambda: proxy.limit is None or not lab.cluster.unfinished(), "it is cut")

    lab.wait_until_done()
    lab.check()
    assert lab.cluster.one("SELECT count(*) FROM effect") == 80
    assert worker.family() == family


def test_resets_of_all_connections_lose_nothing(lab: Laboratory, proxy: Proxy):
    worker = lab.worker(port=proxy.port, processes=2)
    family = worker.family()
    lab.send("orders", keys=20, each=40, seconds=0.005)

    for count in (50, 200, 350, 500):
        until(lambda count=count: lab.has_run(count), "work goes on")  # type: ignore[misc]
        proxy.reset_all()

    lab.wait_until_done()
    assert lab.check() == 0
    assert worker.family() == family
