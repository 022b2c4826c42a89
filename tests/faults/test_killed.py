"""Processes that are killed or frozen."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_jobqueue.models import Job, Worker
from django_jobqueue.states import FailureReason, JobState
from tests.past import reread
from tests.waiting import until

from .conftest import LANES, ends, runs, send
from .history import History, check
from .runner import QUICK, children_of, is_alive

pytestmark = pytest.mark.django_db(transaction=True)

WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def kill(history, pid: int) -> None:
    history.killed[pid] = time.monotonic()
    os.kill(pid, signal.SIGKILL)


def test_a_job_whose_child_is_killed_runs_elsewhere_within_two_seconds(start, history, gates):  # F1 G4
    worker = start()
    job = send("work", {"gate": "go"})
    runs(history, job)

    began = time.monotonic()
    kill(history, history.runs(job)[0].pid)
    runs(history, job, times=2)
    took = time.monotonic() - began
    gates.open("go")

    done = ends(job, JobState.COMPLETED)
    first, second = history.runs(job)
    assert took < 2
    assert first.pid != second.pid
    assert second.pid in children_of(worker.pid)
    assert (done.attempt, done.retry_count) == (2, 1)
    assert "died (signal 9), attempt 1" in done.attempts[0]["error"]
    gone = Worker.objects.get(pid=first.pid)
    assert gone.stopped_at is not None
    assert gone.exit_text == "died (signal 9)"


def test_only_the_job_that_ran_is_charged_and_what_was_merely_claimed_goes_back(start, history, gates):  # F2 G3
    start("--concurrency", "1")
    for job in [send("noop") for _ in range(30)]:
        ends(job, JobState.COMPLETED)  # now it knows that handlers are quick, and claims ahead
    job = send("work", {"gate": "go"}, priority=1)
    others = [send("work") for _ in range(5)]
    runs(history, job)
    until(lambda: Job.objects.filter(state=JobState.ACTIVE).count() == 6, "all are claimed")

    kill(history, history.runs(job)[0].pid)
    gates.open("go")

    charged = ends(job, JobState.COMPLETED)
    assert (charged.retry_count, charged.attempts[0]["outcome"]) == (1, FailureReason.WORKER_LOST)
    for other in others:
        now = ends(other, JobState.COMPLETED)
        assert (now.retry_count, now.crashes, history.begun(other)) == (0, 0, 1)
        assert now.attempt == 2


def effects(history: History) -> list[Any]:
    return [line for line in history.lines() if line["event"] == "effect"]


def test_an_atomic_handler_shows_one_effect_however_often_it_is_killed(start, history, gates):  # F3 B29
    start()
    job = send("atomic-work", {"gate": "go"})
    for times in (1, 2):
        until(lambda times=times: len(effects(history)) == times, "the effect")  # type: ignore[misc]
        kill(history, history.runs(job)[-1].pid)
    runs(history, job, times=3)
    gates.open("go")

    done = ends(job, JobState.COMPLETED)
    assert [group.name for group in Group.objects.all()] == [f"{job.pk} {done.attempt}"]


def test_a_handler_that_ended_unrecorded_runs_again_uncharged(start, history, gates):  # F3
    start()
    job = send("work", {"gate": "go"})
    runs(history, job)
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)  # so that its end cannot be recorded
        gates.open("go")
        until(lambda: [run for run in history.runs(job) if run.ended], "the handler ended")
        kill(history, history.runs(job)[0].pid)
        until(no_session_waits, "its statements have ended")

    done = ends(job, JobState.COMPLETED)
    assert (history.begun(job), done.retry_count, done.crashes) == (2, 0, 0)


def no_session_waits() -> bool:
    """Whether no session waits for a lock: the server does not notice at once that a client has ended."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(WAITING)
        return cursor.fetchone() is None


def test_when_all_of_a_worker_is_killed_another_takes_over(start, history, gates):  # F4 G4
    first = start()
    job = send("work", {"gate": "go"})
    lane = [send("lane-work", {"gate": "go"}, queue=LANES) for _ in range(3)]
    runs(history, job)
    runs(history, lane[0])
    start()

    history.killed[history.runs(job)[0].pid] = began = time.monotonic()
    first.kill_all()
    runs(history, job, times=2)
    took = time.monotonic() - began
    gates.open("go")

    assert took < QUICK["WORKER_UNLOCKED_SECONDS"] + 1.5 + 1  # the next look, and some air
    assert "vanished" in ends(job, JobState.COMPLETED).attempts[0]["error"]
    for one in lane:
        ends(one, JobState.COMPLETED)
    check(history, LANES)
    assert Worker.objects.filter(stopped_at=None).count() == 1


def test_children_end_with_their_supervisor(start, history, gates):  # F4
    worker = start(processes=2)
    family = children_of(worker.pid)
    job = send("swallow", expire_in_seconds=60)
    runs(history, job)

    os.kill(worker.pid, signal.SIGKILL)
    worker.process.wait()

    assert len(family) == 3
    until(lambda: not any(map(is_alive, family)), "children and housekeeper are gone", 2)


def test_a_keeper_that_is_killed_is_replaced_and_nothing_is_lost(start, history, gates):  # F1
    worker = start()
    job = send("work", {"gate": "go"})
    runs(history, job)
    before = worker.housekeeper()

    os.kill(before, signal.SIGKILL)
    until(lambda: worker.housekeepers() not in ([], [before]), "another housekeeper")
    row = worker.rows()[0]
    until(lambda: Worker.objects.get(pk=row.pk).heartbeat_at > row.heartbeat_at, "it sends heartbeats")
    gates.open("go")

    done = ends(job, JobState.COMPLETED)
    assert (done.attempt, done.retry_count) == (1, 0)
    assert session_locks() == 1


def session_locks() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return int(cursor.fetchone()[0])


def test_a_keeper_that_hangs_is_replaced(start, history, gates):  # F8
    worker = start()
    before = worker.housekeeper()

    os.kill(before, signal.SIGSTOP)
    until(lambda: before not in children_of(worker.pid), "it is replaced", 10)

    ends(send("work"), JobState.COMPLETED, 10)


def test_a_frozen_worker_loses_its_job_and_its_work_is_rolled_back(start, history, gates):  # F6 G3
    zombie = start()
    job = send("atomic-work", {"gate": "go"})
    until(lambda: effects(history), "the effect")
    zombie.kill_all(signal.SIGSTOP)
    start()
    runs(history, job, times=2)  # after WORKER_LOST_SECONDS

    gates.open("go")
    done = ends(job, JobState.COMPLETED)
    zombie.kill_all(signal.SIGCONT)

    pid = history.runs(job)[0].pid
    until(lambda: not is_alive(pid) or [run for run in history.runs(job) if run.pid == pid and run.ended], "it goes on")
    zombie.stop()
    assert [group.name for group in Group.objects.all()] == [f"{job.pk} {done.attempt}"]
    assert reread(job).attempt == done.attempt == 2


def test_the_result_of_a_frozen_child_is_refused(start, history, gates):  # F6 G3
    """Its housekeeper and supervisor are frozen for longer, so that it wakes up and tries to record the result."""
    zombie = start()
    job = send("work", {"gate": "go"})
    runs(history, job)
    pid = history.runs(job)[0].pid
    zombie.kill_all(signal.SIGSTOP)
    start()
    runs(history, job, times=2)

    gates.open("go")
    done = ends(job, JobState.COMPLETED)
    os.kill(pid, signal.SIGCONT)

    until(lambda: zombie.says("claim lost"), "the lost claim is logged")
    now = reread(job)
    assert (now.state, now.attempt, now.finalized_at) == (JobState.COMPLETED, 2, done.finalized_at)
    zombie.kill_all(signal.SIGCONT)


def test_a_child_that_is_frozen_alone_is_replaced_and_its_job_not_charged(start, history, gates):  # F6
    worker = start()
    job = send("work", {"gate": "go"})
    runs(history, job)

    history.killed[history.runs(job)[0].pid] = time.monotonic()
    os.kill(history.runs(job)[0].pid, signal.SIGSTOP)
    runs(history, job, times=2, seconds=6)
    gates.open("go")

    done = ends(job, JobState.COMPLETED)
    assert (done.attempt, done.retry_count, done.crashes) == (2, 0, 0)
    assert worker.says("was frozen")
