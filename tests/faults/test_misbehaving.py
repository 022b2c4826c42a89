"""Handlers that never return, take down their process, fork, or leave a mess."""

from __future__ import annotations

import os
import resource
import time
from math import ceil
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import FailureReason, JobState
from django_jobqueue.timings import EXPIRE_KILL_SECONDS
from tests.past import reread
from tests.waiting import until

from .conftest import LANES, ends, runs, send
from .history import check
from .runner import is_alive

pytestmark = pytest.mark.django_db(transaction=True)


def output_of(job: Job) -> Any:
    return ends(job, JobState.COMPLETED).output


# ------------------------------------------------------------------------------------------------------ never return


def test_a_loop_without_end_is_stopped_softly_and_its_neighbours_go_on(start, history, gates):  # F7
    worker = start("--concurrency", "2")
    before = worker.children()
    beside = send("work", {"gate": "go"})
    runs(history, beside)
    job = send("spin", retry_limit=0, expire_in_seconds=1)

    began = time.monotonic()
    done = ends(job, JobState.EXPIRED)
    assert time.monotonic() - began < 6
    gates.open("go")

    assert done.reason == FailureReason.EXPIRED
    assert "1 seconds" in done.error
    assert history.runs(job)[0].ended is not None  # it was stopped by an exception, and cleaned up
    assert ends(beside, JobState.COMPLETED).attempt == 1
    assert worker.children() == before
    ends(send("work"), JobState.COMPLETED)


def test_a_handler_that_expires_with_retries_left_runs_again(start, history):  # F7 B10
    start("--concurrency", "1")
    job = send("spin", retry_limit=1, expire_in_seconds=1)

    done = ends(job, JobState.EXPIRED)

    assert (history.begun(job), done.retry_count) == (2, 1)


@pytest.mark.parametrize("name", ("swallow", "hold-gil", "regex-bomb", "async-block"))
def test_a_handler_that_cannot_be_stopped_loses_its_process(start, history, gates, name):  # F7 F8
    worker = start("--concurrency", "2")
    before = worker.children()
    beside = send("work", {"gate": "go"})
    runs(history, beside)
    job = send(name, retry_limit=0, expire_in_seconds=1)

    done = ends(job, JobState.EXPIRED, 15)
    runs(history, beside, times=2)
    gates.open("go")

    assert "1 seconds" in done.error
    assert (history.begun(job), done.crashes) == (1, 0)
    assert not is_alive(before[0])
    innocent = ends(beside, JobState.COMPLETED)
    assert (innocent.attempt, innocent.retry_count, innocent.crashes) == (2, 0, 0)


def test_a_worker_whose_handler_holds_the_lock_is_not_given_up(start, history):  # F8
    """Its housekeeping process sends heartbeats, so no other worker claims the job before its time is used up."""
    start()
    start()
    job = send("hold-gil", expire_in_seconds=6, retry_limit=0)

    done = ends(job, JobState.EXPIRED, 20)

    assert (history.begun(job), done.attempt) == (1, 1)


def test_the_process_of_a_handler_is_gone_before_the_next_attempt_begins(start, history):  # F81
    """With the shortest grace that the check allows: other workers look for expired jobs all the time."""
    edge = {"EXPIRE_GRACE_SECONDS": 1.0, "STOP_GRACE_SECONDS": ceil(1.0 + EXPIRE_KILL_SECONDS)}
    for _ in range(2):
        start(**edge)
    job = send("hold-interpreter", expire_in_seconds=1, retry_limit=1, retry_delay=0)

    done = ends(job, JobState.COMPLETED, 20)

    assert (history.begun(job), done.attempt) == (2, 2)
    assert [line["left"] for line in history.lines() if line["event"] == "begin"] == [[], []]
    assert done.attempts[0]["outcome"] == FailureReason.EXPIRED


def test_an_async_handler_that_takes_too_long_is_cancelled_alone(start, history):  # F7
    worker = start()
    before = worker.children()
    job = send("async-slow", retry_limit=0, expire_in_seconds=1)
    others = [send("async-work", {"seconds": 2}) for _ in range(5)]

    done = ends(job, JobState.EXPIRED)

    assert done.reason == FailureReason.EXPIRED
    assert [ends(other, JobState.COMPLETED).attempt for other in others] == [1] * 5
    assert worker.children() == before


def test_what_expires_in_an_open_transaction_has_expired(start):  # F7 F14
    start()
    job = send("expire-in-transaction", retry_limit=0, expire_in_seconds=1)

    assert ends(job, JobState.EXPIRED).reason == FailureReason.EXPIRED


# --------------------------------------------------------------------------------------------------------- take down


def test_a_job_that_crashes_its_process_runs_three_times_and_is_quarantined(start, history):  # F9 G8
    start()
    job = send("segfault", retry_limit=None)

    done = ends(job, JobState.FAILED)

    assert done.reason == FailureReason.CRASH_LOOP
    assert (history.begun(job), done.crashes) == (3, 3)
    assert "signal 11" in done.error
    assert len({run.pid for run in history.runs(job)}) == 3
    assert [entry["outcome"] for entry in done.attempts] == [FailureReason.WORKER_LOST] * 3
    ends(send("work"), JobState.COMPLETED)


def test_innocents_beside_a_crashing_job_are_not_quarantined(start, history):  # F9 G7
    start("--concurrency", "4")
    innocents = [send("work", {"seconds": 0.2}) for _ in range(20)]
    bad = [send("segfault", priority=1) for _ in range(2)]
    innocents += [send("work", {"seconds": 0.2}) for _ in range(20)]

    for job in bad:
        assert ends(job, JobState.FAILED, 40).reason == FailureReason.CRASH_LOOP
        # The other bad job may have killed it before its first line, twice at most: the last attempt runs alone.
        assert history.begun(job) in (1, 2, 3)

    done = [ends(job, JobState.COMPLETED, 40) for job in innocents]
    assert max(job.retry_count for job in done) <= 2  # one crash of each bad job may have hit it, no more
    assert {job.crashes for job in done} == {0}


def test_a_suspect_runs_alone(start, history):  # F9 G8
    """Before a job fails for good because of crashes, it runs alone in its process."""
    start("--concurrency", "4")
    others = [send("work", {"seconds": 0.1}) for _ in range(60)]
    bad = send("segfault")

    ends(bad, JobState.FAILED, 40)
    for job in others:
        ends(job, JobState.COMPLETED, 40)

    for again in history.runs(bad)[2:]:  # its last chance
        beside = [run for run in history.runs() if run.pid == again.pid and run.job != bad.pk]
        at_once = [run for run in beside if run.ended is None or run.ended > again.began > run.began]
        assert not at_once


def test_a_crash_in_a_lane_blocks_only_its_key(start, history):  # F9 F59
    start()
    bad = send("segfault", queue=LANES, singleton_key="bad")
    behind = send("lane-work", queue=LANES, singleton_key="bad")
    others = [send("lane-work", queue=LANES, singleton_key=f"k{n % 5}") for n in range(50)]

    for job in others:
        ends(job, JobState.COMPLETED)
    ends(bad, JobState.FAILED)

    assert (reread(behind).state, history.begun(behind)) == (JobState.CREATED, 0)
    assert services.blocked_keys(LANES) == ["bad"]


@pytest.mark.parametrize(
    ("name", "data", "text"),
    (
        ("sys-exit", {"code": 7}, "sys.exit(7)"),
        ("sys-exit", {"code": 0}, "sys.exit(0)"),
        ("interrupt", None, "KeyboardInterrupt"),
        ("generator-exit", None, "GeneratorExit"),
        ("async-sys-exit", None, "sys.exit(3)"),
        ("async-cancelled", None, "CancelledError"),
        ("unprintable", None, "Unprintable"),
    ),
)
def test_whatever_is_raised_is_a_failure_and_the_worker_lives(start, name, data, text):  # F10 F16 R390
    worker = start("--concurrency", "1")
    before = worker.children()

    done = ends(send(name, data, retry_limit=1), JobState.FAILED)

    assert text in done.error
    assert (done.attempt, done.retry_count, done.reason) == (2, 1, FailureReason.ERROR)
    ends(send("work"), JobState.COMPLETED)
    assert worker.children() == before


@pytest.mark.parametrize("code", (0, 1, 74, 75, 76, 77))
def test_leaving_without_a_word_is_a_crash_and_no_success(start, history, code):  # F11
    """Also with the numbers that children themselves leave with."""
    start("--concurrency", "1")
    job = send("exit", {"code": code})

    done = ends(job, JobState.FAILED)

    assert (history.begun(job), done.reason) == (3, FailureReason.CRASH_LOOP)
    assert f"left without reporting (exit code {code})" in done.error


@pytest.mark.parametrize("then", ("return", "raise"))
def test_a_forked_copy_that_comes_back_tells_nothing(start, then):  # F12
    worker = start("--concurrency", "1")

    done = ends(send("fork", {"then": then}), JobState.COMPLETED)

    assert (done.output, done.attempt) == (worker.children()[0], 1)
    assert worker.says("handler forked and the copy returned")
    ends(send("work"), JobState.COMPLETED)


@pytest.mark.parametrize("then", ("return", "raise"))
def test_a_forked_copy_of_an_atomic_handler_does_not_touch_its_transaction(start, then):  # F12
    worker = start("--concurrency", "1")
    job = send("atomic-fork", {"then": then})

    done = ends(job, JobState.COMPLETED)

    assert (done.output, done.attempt) == (worker.children()[0], 1)
    assert Group.objects.count() == 1


def test_a_handler_that_eats_memory_fails_and_others_go_on(start, history):  # F13
    worker = start("--concurrency", "1")
    (pid,) = worker.children()
    resource.prlimit(pid, resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))

    done = ends(send("eat-memory", retry_limit=0), JobState.FAILED)

    assert "MemoryError" in done.error or "died" in done.error
    ends(send("work"), JobState.COMPLETED)


# ------------------------------------------------------------------------------------------------------------ untidy


@pytest.mark.parametrize("how", ("begin", "atomic", "autocommit"))
def test_an_open_transaction_is_rolled_back_and_the_job_has_failed(start, how):  # F14
    start("--concurrency", "1")

    done = ends(send("open-transaction", {"how": how}, retry_limit=0), JobState.FAILED)

    assert "left a transaction open" in done.error
    assert not Group.objects.exists()
    found = output_of(send("look-around"))
    assert (found["in_atomic_block"], found["autocommit"]) == (False, True)


@pytest.mark.parametrize("then", ("raise", "for-good"))
def test_an_error_with_an_open_transaction_keeps_its_own_text(start, then):  # F14
    start("--concurrency", "1")

    done = ends(send("open-transaction", {"then": then}, retry_limit=1), JobState.FAILED)

    assert "the true reason" in done.error
    assert done.attempt == (2 if then == "raise" else 1)
    assert not Group.objects.exists()


@pytest.mark.parametrize("how", ("django", "driver", "inside"))
def test_a_closed_connection_harms_nobody(start, how):  # F14
    start("--concurrency", "1")
    job = send("close-connection", {"how": how}, retry_limit=0)

    until(lambda: reread(job).state in (JobState.COMPLETED, JobState.FAILED), "it ended")

    assert output_of(send("look-around", retry_limit=0))["autocommit"] is True


CHANGES = (
    "folder",
    "removed-folder",
    "locale",
    "zone-of-django",
    "language",
    "composed",
    "after-an-error",
    "SET search_path TO pg_catalog",
    "SET TIME ZONE 'Asia/Tokyo'",
    "set session time zone 'Asia/Tokyo'",
    "SELECT set_config('search_path', 'pg_catalog', false)",
    "SELECT 1; SET search_path TO pg_catalog",
    "/* why */ SET search_path TO pg_catalog",
    "SELECT pg_advisory_lock(42)",
    "CREATE TEMPORARY TABLE left_behind ()",
)


def test_the_next_job_finds_nothing_that_another_changed(start):  # F15
    start("--concurrency", "1")
    clean = output_of(send("look-around"))
    del clean["backend"]

    left: dict[str, Any] = {}
    for what in CHANGES:
        ends(send("change", {"what": what}), JobState.COMPLETED)
        found = output_of(send("look-around"))
        left |= {f"{what}: {name}": found[name] for name in clean if found[name] != clean[name]}

    assert left == {}


def test_a_session_that_was_ended_between_two_jobs_costs_nothing(start):  # F14 F21
    start("--concurrency", "1")
    backend = output_of(send("look-around"))["backend"]

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [backend])
    done = ends(send("look-around", retry_limit=0), JobState.COMPLETED)

    assert done.attempt == 1


def test_an_output_that_cannot_be_written_is_cleaned(start):  # F51 R386
    start()

    done = ends(send("unprintable-output"), JobState.COMPLETED)

    assert done.attempt == 1
    assert done.output is not None


@pytest.mark.parametrize("data", (("retry-later", 1e12), ("retry-later", "soon"), ("snooze", 1e300)))
def test_a_wish_that_makes_no_sense_is_a_failure(start, data):  # F10
    worker = start("--concurrency", "1")
    before = worker.children()
    what, value = data

    job = send("raise", {"what": what, "value": value}, retry_limit=0)

    until(lambda: reread(job).state in (JobState.FAILED, JobState.RETRY), "it ended")
    ends(send("work"), JobState.COMPLETED)
    assert worker.children() == before
    assert reread(job).attempt == 1


# ----------------------------------------------------------------------------------------------------- G7, and locks


def test_a_locked_row_stops_neither_the_worker_nor_other_jobs(start, history, gates):  # F25
    worker = start("--concurrency", "2")
    before = worker.children()
    job = send("report", {"gate": "go"}, heartbeat_seconds=10)
    runs(history, job)

    from django.db import transaction

    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)
        Job.objects.filter(pk=job.pk).update(heartbeat_at="2020-01-01T00:00:00Z")
        others = []
        until_at = time.monotonic() + 4  # more than WORKER_FENCE_SECONDS
        while time.monotonic() < until_at:
            others.append(output_in_another_session("work"))
        transaction.set_rollback(True)
    gates.open("go")

    assert len(others) >= 2
    assert ends(job, JobState.COMPLETED).attempt == 1
    assert worker.children() == before


def output_in_another_session(name: str) -> str:
    """Send a job and wait for it, beside the transaction that is open here."""
    import threading

    from django.db import connections

    done: list[str] = []

    def work() -> None:
        try:
            done.append(ends(send(name), JobState.COMPLETED, 5).state)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done, "a job beside a locked row did not end"
    return done[0]


def test_poisoned_jobs_leave_the_others_their_speed(start, history):  # G7
    """Far looser than the benchmark: it must merely not stop."""
    start("--concurrency", "4")
    bad = send("segfault")
    ends(bad, JobState.FAILED, 30)
    jobs = [send("lane-work", queue=LANES, singleton_key=f"k{n % 20}") for n in range(200)]
    poison = send("raise", {"what": "boom"}, queue=LANES, singleton_key="bad", retry_limit=0)
    behind = [send("lane-work", queue=LANES, singleton_key="bad") for _ in range(20)]

    for job in jobs:
        ends(job, JobState.COMPLETED, 30)
    ends(poison, JobState.FAILED)

    assert {reread(job).state for job in behind} == {JobState.CREATED}
    assert not any(history.begun(job) for job in behind)


def test_a_worker_survives_a_day_of_bad_handlers(start, history):  # F7-F16 G1: all at once
    start("--concurrency", "4", processes=2)
    names = [("segfault", None), ("exit", {"code": 0}), ("sys-exit", None), ("interrupt", None), ("unprintable", None),
             ("open-transaction", {"how": "begin"}), ("close-connection", {"how": "driver"}),
             ("raise", {"what": "boom"})]  # fmt: skip
    bad = [send(name, data, queue=LANES, singleton_key=f"bad {n}") for n, (name, data) in enumerate(names)]
    good = [send("lane-work", queue=LANES, singleton_key=f"k{n % 10}") for n in range(100)]

    for job in good:
        ends(job, JobState.COMPLETED, 40)
    for job in bad:
        until(lambda job=job: reread(job).state in (JobState.FAILED, JobState.COMPLETED), job.name, 40)  # type: ignore[misc]

    assert os.path.exists(history.path)
    Job.objects.in_queue(LANES).filter(pk__in=[job.pk for job in bad]).delete()
    check(history, LANES)
