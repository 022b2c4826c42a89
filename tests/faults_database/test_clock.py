"""The clock of a worker, or of the server, is wrong: due times, retries, deadlines and leases are the database's."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from django_jobqueue import services

from .clocks import lying, lying_server, set_ahead
from .cluster import ALIAS, PATIENT
from .runner import QUICK, Laboratory, until

DAY = 86_400
LENIENT = {**QUICK, "EXPIRE_GRACE_SECONDS": 4.0, "STOP_GRACE_SECONDS": 8}
DAYS = [DAY, -DAY]


def now(lab: Laboratory) -> datetime:
    moment: datetime = lab.cluster.one("SELECT clock_timestamp()")
    return moment


@pytest.fixture(params=DAYS, ids=["a day ahead", "a day behind"])
def worker(request: pytest.FixtureRequest, lab: Laboratory, tmp_path: Path):
    worker = lab.worker(env=lying(tmp_path / "clock", request.param), settings=LENIENT)
    lab.send_one("work", "plain")
    lab.wait_until_done()
    return worker


def test_the_clock_of_the_laboratory_lies(lab: Laboratory, tmp_path: Path):
    """Or the tests below would prove nothing."""
    env = lying(tmp_path / "clock", DAY)
    said = subprocess.check_output([sys.executable, "-c", "import time; print(time.time())"], env=env)
    assert DAY - 60 < float(said) - time.time() < DAY + 60
    told = subprocess.check_output([sys.executable, "-c", "import time; print(time.monotonic())"], env=env)
    assert abs(float(told) - time.monotonic()) < 60


def test_a_delayed_job_runs_when_the_database_says_so(lab: Laboratory, worker):  # F43
    due = now(lab) + timedelta(seconds=3)
    services.send("work", {"n": 1}, name="plain", start_after=due, using=ALIAS)
    services.send("work", {"n": 2}, name="plain", delay=timedelta(hours=2), using=ALIAS)

    until(lambda: lab.has_run(2), "it runs", 10)

    assert abs((now(lab) - due).total_seconds()) < 2
    assert [run.n for run in lab.runs()] == [0, 1]


def test_retries_wait_as_long_as_they_say(lab: Laboratory, worker):  # F43
    """By a delay, and at a moment the handler was told."""
    at = now(lab) + timedelta(seconds=3)
    options = {**PATIENT, "retry_delay": 2}
    services.send("work", {"n": 1, "at": at.isoformat()}, name="later", using=ALIAS, **options)
    services.send("work", {"n": 2}, name="later", using=ALIAS, **options)

    lab.wait_until_done(15)

    starts = {(run.n, run.attempt): run.began for run in lab.runs()}
    assert 2 <= starts[1, 2] - starts[1, 1] < 6
    assert 1.9 <= starts[2, 2] - starts[2, 1] < 5


def test_deadlines_and_leases_are_not_shortened(lab: Laboratory, worker):  # F43
    other = lab.worker("other", settings=LENIENT)
    services.send("work", {"n": 1, "seconds": 6}, name="plain", expire_in_seconds=30, using=ALIAS)
    services.send("work", {"n": 2, "seconds": 30}, name="plain", expire_in_seconds=3, retry_limit=0, using=ALIAS)

    query = "SELECT count(*) FROM jobqueue_job WHERE state IN ('created', 'active', 'retry', 'unknown_retry')"
    until(lambda: lab.cluster.one(query) == 0, "both ended", 15)

    states = dict(lab.cluster.sql("SELECT (data->>'n')::int, state FROM jobqueue_job"))
    assert states == {0: "completed", 1: "completed", 2: "expired"}
    slow = next(run for run in lab.runs() if run.n == 2)
    assert 2.5 < slow.ended - slow.began < 8
    assert other.is_running()


def test_a_clock_that_jumps_during_a_job_changes_nothing(lab: Laboratory, tmp_path: Path):  # F43
    clock = tmp_path / "clock"
    worker = lab.worker(env=lying(clock, 0), settings=LENIENT)
    family = worker.family()
    lab.send("orders", keys=4, each=3, seconds=2)
    until(lambda: lab.has_run(4), "handlers run")
    for seconds in (DAY, -DAY, 0):
        set_ahead(clock, seconds)
        jumped = time.monotonic()
        until(lambda jumped=jumped: time.monotonic() - jumped > 1.5, "some time is over")  # type: ignore[misc]

    lab.wait_until_done(20)
    assert lab.check() == 0
    assert worker.family() == family


def test_a_server_whose_clock_goes_ahead_gives_up_no_living_worker(lab: Laboratory):  # F44
    with lying_server(lab.cluster.server) as ahead:
        first, second = lab.worker("first", settings=QUICK), lab.worker("second", settings=QUICK)
        family = {**first.family(), **second.family()}
        lab.send("orders", keys=6, each=2, seconds=4)
        until(lambda: lab.has_run(6), "handlers run")
        before = now(lab)

        ahead(3_600)
        assert now(lab) - before > timedelta(minutes=59), "the clock jumped"

        lab.wait_until_done(30)
        assert lab.check() == 0, "nobody was given up"
        assert {**first.family(), **second.family()} == family
        assert any("clock" in line.text for line in [*first.lines(), *second.lines()]), "it is told"
        lab.close()
