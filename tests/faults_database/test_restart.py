"""The server goes away and comes back: restarted, killed, or away for longer than workers may wait."""

from __future__ import annotations

import os
import signal
import time

import pytest

from django_jobqueue import services
from django_jobqueue.worker.housekeeper import RECOVER_SECONDS

from .cluster import ALIAS
from .logs import most_talkative
from .runner import QUICK, Laboratory, until

CLUSTER = {"fsync": True}  # because what was committed must be there after a crash
LOST, BACK = "lost connection to the database", "database is back"


@pytest.mark.parametrize("mode", ("fast", "immediate"))
def test_workers_go_on_after_a_restart_and_nothing_is_lost(lab: Laboratory, mode):  # G5 F19 F20
    worker = lab.worker(processes=2)
    family = worker.family()
    lab.send("orders", keys=40, each=60, seconds=0.01)
    until(lambda: lab.has_run(300), "work has begun")
    stopped = time.monotonic()

    lab.cluster.server.restart(mode)
    accepts = time.monotonic()

    until(lambda: any(run.began > accepts for run in lab.runs()), "handlers begin again", 5)
    lab.wait_until_done()
    assert lab.check() == 0, "no handler was ended, so none ran twice"
    assert worker.family() == family, "no process left"
    assert most_talkative(worker.lines(), stopped, time.monotonic()) <= 1
    assert any(line.text.startswith(LOST) for line in worker.lines())
    assert lab.cluster.active() == 0


def test_an_idle_worker_takes_jobs_again_after_a_restart(lab: Laboratory):  # G5
    worker = lab.worker()
    family = worker.family()
    lab.cluster.server.restart("immediate")
    accepts = time.monotonic()

    lab.send_one("orders", "step", key="a")

    until(lambda: lab.has_run(1), "the job runs", 5)
    assert lab.runs()[0].began - accepts < 5
    assert worker.family() == family


def test_the_log_stays_quiet_while_the_database_is_away(lab: Laboratory):  # G5
    worker = lab.worker(processes=2)
    began = time.monotonic()
    lab.cluster.server.stop("fast")
    until(lambda: time.monotonic() - began > 5, "five seconds are over")
    lab.cluster.server.start()
    until(lambda: len([1 for line in worker.lines() if line.text.startswith(BACK)]) >= 3, "all are back", 5)

    lines = [line for line in worker.lines() if line.at >= began]
    assert most_talkative(lines, began, time.monotonic()) <= 1
    for pid in {line.pid for line in lines}:
        assert len([1 for line in lines if line.pid == pid and line.text.startswith(LOST)]) == 1


def test_handlers_are_ended_while_the_database_is_away_for_long_and_run_again(lab: Laboratory):  # F40
    worker = lab.worker(settings=QUICK)
    lab.send("orders", keys=3, each=2, seconds=4)
    until(lambda: lab.has_run(3), "handlers run")

    lab.cluster.server.stop("fast")
    stopped = time.monotonic()
    until(lambda: any("lost contact" in line.text for line in worker.lines()), "handlers are ended", 5)
    assert time.monotonic() - stopped < QUICK["WORKER_UNLOCKED_SECONDS"]
    lab.cluster.server.start()

    lab.wait_until_done(50)
    assert lab.check() == 3
    charged = lab.cluster.one("SELECT max(retry_count) FROM jobqueue_job")
    assert charged == 0, "it was no fault of theirs"


def test_a_worker_that_is_back_first_takes_no_jobs_of_another_after_an_outage(lab: Laboratory):  # B40
    patient = QUICK | {"WORKER_UNLOCKED_SECONDS": 15.0, "WORKER_LOST_SECONDS": 25.0}
    early = lab.worker("early", "--queue=work", settings=patient)
    late = lab.worker("late", "--queue=orders", settings=QUICK)
    lab.send("orders", keys=3, each=1, seconds=30)
    until(lambda: lab.has_run(3), "handlers run")

    lab.cluster.server.stop("fast")
    stopped = time.monotonic()
    until(lambda: any("lost contact" in line.text for line in late.lines()), "handlers are ended", 10)
    until(lambda: time.monotonic() - stopped > QUICK["WORKER_LOST_SECONDS"], "each heartbeat is too old", 10)
    frozen = list(late.family())
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        lab.cluster.server.start()
        until(lambda: any(BACK in line.text for line in early.lines()), "it is back")
        back = time.monotonic()
        until(lambda: time.monotonic() - back > 3 * RECOVER_SECONDS, "it had the time to look for lost workers")
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)

    until(lambda: lab.has_run(6), "they run again", 30)
    charged = lab.cluster.one("SELECT max(retry_count) FROM jobqueue_job")
    assert charged == 0, "the outage was no fault of theirs"


def test_a_worker_started_while_the_database_is_away_waits_for_it(lab: Laboratory):
    lab.cluster.server.stop("fast")
    worker = lab.worker(wait=False)
    until(lambda: worker.lines() or not worker.is_running(), "it says something")
    assert worker.is_running(), worker.output.read_text()

    lab.cluster.server.start()
    lab.send_one("orders", "step", key="a")

    lab.wait_until_done(10)


@pytest.mark.parametrize("mode", ("fast", "immediate"))
def test_an_attempt_whose_transaction_dies_with_the_server_costs_no_retry(lab: Laboratory, mode):  # B40
    lab.worker(settings=QUICK)
    for key in "abc":
        services.send("ledger", {"n": 0, "seconds": 1.5}, name="book", singleton_key=key, retry_limit=0, using=ALIAS)
    until(lambda: lab.has_run(3), "handlers are inside their transactions")

    lab.cluster.server.restart(mode)

    lab.wait_until_done()  # with no retries, a charged one would have blocked its key
    assert lab.cluster.one("SELECT max(retry_count) FROM jobqueue_job") == 0
    assert lab.cluster.one("SELECT count(*) FROM effect") == 3
    assert {run.attempt for run in lab.runs()} == {1, 2}


def test_an_attempt_whose_session_alone_is_terminated_is_charged(lab: Laboratory):  # B40
    lab.worker(settings=QUICK)
    job = services.send("ledger", {"n": 0, "seconds": 1.5}, name="book", singleton_key="a", retry_limit=3, using=ALIAS)
    assert job is not None
    until(lambda: lab.has_run(1), "the handler is inside its transaction")

    for pid in lab.cluster.backends("INSERT INTO effect%"):
        lab.cluster.sql("SELECT pg_terminate_backend(%s)", [pid])

    lab.wait_until_done()
    assert lab.cluster.one("SELECT retry_count FROM jobqueue_job") == 1
