"""Workers whose processes start by ``exec``, as on macOS, and workers of a single process, as on Windows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from django_jobqueue.conf import find_problems
from django_jobqueue.models import Worker
from django_jobqueue.states import JobState
from tests.past import reread
from tests.waiting import until

from .conftest import LANES, ends, runs, send
from .history import check
from .runner import ROOT, Runner, children_of, database_dsn, is_alive
from .test_stopped import free_port, get

pytestmark = pytest.mark.django_db(transaction=True)

SLOW = 120.0  # on a busy machine new interpreters take long to import the project


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


# -------------------------------------------------------------------------------------------------------- exec


def test_processes_that_start_by_exec_are_new_interpreters_and_work(start, history):
    worker = start("--tags", "fast", processes=2, START_METHOD="exec")
    jobs = [send("work", tags=["fast"]) for _ in range(10)]
    lane = [send("lane-work", queue=LANES, singleton_key=f"k{n % 3}", tags=["fast"]) for n in range(12)]

    for job in [*jobs, *lane]:
        ends(job, JobState.COMPLETED, SLOW)

    assert all("exec_start.py" in command_of(pid) for pid in children_of(worker.pid))
    assert worker.rows()[0].tags == ["fast"]
    check(history, LANES)
    assert worker.stop() == 0
    assert set(Worker.objects.values_list("exit_text", flat=True)) == {"has stopped"}


def test_a_job_whose_child_is_killed_runs_in_another_that_was_started_by_exec(start, history, gates):  # F1 G4
    worker = start(START_METHOD="exec")
    job = send("work", {"gate": "go"})
    runs(history, job, seconds=SLOW)
    first = history.runs(job)[0].pid

    history.killed[first] = time.monotonic()
    os.kill(first, signal.SIGKILL)
    runs(history, job, times=2, seconds=SLOW)
    gates.open("go")

    done = ends(job, JobState.COMPLETED, SLOW)
    assert (done.attempt, done.retry_count) == (2, 1)
    assert history.runs(job)[1].pid in children_of(worker.pid)


def test_a_handler_that_cannot_be_stopped_is_killed_with_its_process(start, history):
    """Its deadline is in the file that the processes share."""
    start(START_METHOD="exec")
    job = send("hold-gil", expire_in_seconds=1, retry_limit=0)
    runs(history, job, seconds=SLOW)

    assert ends(job, JobState.EXPIRED, SLOW).retry_count == 0
    assert not is_alive(history.runs(job)[0].pid)


def test_a_dead_housekeeping_process_is_replaced_by_exec(start, history):
    port = free_port()
    worker = start("--health-port", str(port), START_METHOD="exec")
    before = worker.housekeeper()

    os.kill(before, signal.SIGKILL)
    until(lambda: worker.housekeepers() not in ([], [before]), "another housekeeping process", SLOW)

    until(lambda: get(port, "/healthz")[0] == 200, "it answers probes", SLOW)
    assert not worker.says("worker started", times=2)
    ends(send("work"), JobState.COMPLETED, SLOW)


def test_processes_that_started_by_exec_end_with_their_supervisor(start, history, gates):
    worker = start(processes=2, START_METHOD="exec")
    family = children_of(worker.pid)
    job = send("work", {"gate": "never"})
    runs(history, job, seconds=SLOW)

    os.kill(worker.pid, signal.SIGKILL)

    until(lambda: not any(is_alive(pid) for pid in family), "all of its processes have ended", SLOW)


def test_signals_to_all_processes_while_new_interpreters_start_end_the_worker(start):  # Ctrl-C in a terminal
    worker = start(processes=2, wait=False, START_METHOD="exec")
    until(lambda: len(children_of(worker.pid)) == 3, "its processes start", SLOW)
    family = children_of(worker.pid)

    worker.kill_all(signal.SIGINT)

    assert worker.ended(SLOW) == 0
    assert not worker.says("Traceback")
    assert not worker.says("unexpectedly")
    assert not any(is_alive(pid) for pid in family)


# ------------------------------------------------------------------------------------------------ a single process


def test_a_worker_of_a_single_process_works_and_finishes_what_runs(start, history, gates):
    port = free_port()
    worker = start("--health-port", str(port), wait=False, START_METHOD="thread")
    done, busy = send("lane-work", queue=LANES), send("work", {"gate": "go"})
    ends(done, JobState.COMPLETED, SLOW)
    runs(history, busy, seconds=SLOW)
    until(lambda: get(port, "/readyz")[0] == 200, "it is ready", SLOW)
    assert children_of(worker.pid) == []
    assert {run.pid for job in (done, busy) for run in history.runs(job)} == {worker.pid}

    worker.tell()
    gates.open("go")

    assert worker.ended(SLOW) == 0
    assert (reread(busy).state, reread(busy).attempt) == (JobState.COMPLETED, 1)
    (row,) = Worker.objects.all()
    assert row.exit_text == "has stopped"
    assert {"faults", "lanes"} <= set(row.queues)


def test_a_worker_of_a_single_process_can_be_ended_although_a_handler_runs(start, history):
    worker = start("--grace", "60", wait=False, START_METHOD="thread")
    job = send("work", {"gate": "never"})
    runs(history, job, seconds=SLOW)

    worker.tell()
    until(lambda: worker.says("worker is stopping"), "it is stopping", SLOW)
    worker.tell()

    assert worker.ended(SLOW) == 1  # so that a service manager notices
    start()
    runs(history, job, times=2, seconds=SLOW)
    assert reread(job).retry_count == 1  # the next worker cannot know that it was told to end


WITHOUT_FORK = """
import asyncio, concurrent.futures, multiprocessing.connection, os, select, signal, subprocess, sys, tempfile
import django.core.management, psycopg
for module, names in ((os, "fork register_at_fork posix_spawn pipe killpg setpgid getuid memfd_create"),
                      (select, "poll epoll"), (signal, "SIGHUP SIGQUIT SIGCHLD set_wakeup_fd pthread_sigmask")):
    for name in names.split():
        delattr(module, name)
sys.modules["resource"] = sys.modules["fcntl"] = None
django.core.management.execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


def test_without_fork_a_worker_is_a_single_process(queues, tmp_path):
    """As on Windows: what POSIX alone has is removed."""
    job = send("work")
    runner = Runner(tmp_path, "--drain", settings={}, python=("-c", WITHOUT_FORK))
    try:
        assert runner.ended(SLOW) == 0, runner.log
    finally:
        runner.close()

    assert reread(job).state == JobState.COMPLETED, runner.log
    assert runner.says("in a single process")


@pytest.mark.parametrize("method", ("fork", "exec"))
def test_a_start_method_that_the_system_does_not_have_is_refused_in_one_sentence(queues, tmp_path, method):
    runner = Runner(tmp_path, settings={"START_METHOD": method}, python=("-c", WITHOUT_FORK))
    try:
        assert runner.ended(SLOW) == 1
    finally:
        runner.close()

    assert runner.log.strip().splitlines() == [
        f"CommandError: JOBQUEUE['START_METHOD'] is {method!r}, but on Windows a worker is a single process: "
        "use 'thread'."
    ]


# -------------------------------------------------------------------------------------------- before children start


@pytest.mark.parametrize("method", ("fork", "exec"))
def test_the_supervisor_does_not_connect(start, history, tmp_path, method):
    worker = start("--queue", "faults", "--queue", "falts", START_METHOD=method)
    ends(send("work"), JobState.COMPLETED, SLOW)

    connected = {int(path.name.removeprefix("connected-")) for path in tmp_path.glob("connected-*")}

    assert connected == set(children_of(worker.pid))
    assert worker.says("The queue 'falts' does not exist yet; the worker waits until it does. Did you mean 'faults'?")


@pytest.mark.parametrize("method", ("fork", "thread"))
def test_a_database_without_tables_is_told_in_one_sentence(queues, tmp_path, method):
    with psycopg.connect(database_dsn(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS test_empty")
        connection.execute("CREATE DATABASE test_empty TEMPLATE template0")
    runner = Runner(tmp_path, settings={"START_METHOD": method}, database="test_empty")
    try:
        assert runner.ended(SLOW) == 1
    finally:
        runner.close()
        with psycopg.connect(database_dsn(), autocommit=True) as connection:
            connection.execute("DROP DATABASE test_empty WITH (FORCE)")

    assert not runner.says("Traceback")
    assert not runner.says("worker started")
    assert runner.log.splitlines()[-1] == (
        "CommandError: The tables of django_jobqueue are missing or old in the database 'default' "
        '(relation "jobqueue_queue" does not exist): run manage.py migrate.'
    )


@pytest.mark.parametrize("method", ("fork", "thread"))
def test_a_worker_waits_for_a_database_that_does_not_answer(queues, tmp_path, method):
    runner = Runner(tmp_path, settings={"START_METHOD": method}, database="test_nowhere")
    try:
        until(lambda: runner.says("The database does not answer; waiting for it."), "it says that it waits", SLOW)
        until(lambda: runner.says("worker started"), "it goes on", SLOW)
        assert runner.stop() == 0
    finally:
        runner.close()


# --------------------------------------------------------------------------------------------- the end of its input


@pytest.mark.parametrize("method", ("fork", "thread"))
def test_a_worker_ends_with_its_input_and_its_jobs_return(start, history, method):
    reading, writing = os.pipe()
    worker = start("--stop-on-eof", "--grace", "60", wait=False, stdin=reading, START_METHOD=method)
    os.close(reading)
    job = send("work", {"gate": "never"})
    runs(history, job, seconds=SLOW)
    family = children_of(worker.pid)

    os.close(writing)

    assert worker.ended(SLOW) == (0 if method == "fork" else 1)
    assert not any(is_alive(pid) for pid in family)
    if method == "fork":
        assert (reread(job).state, reread(job).retry_count) == (JobState.RETRY, 0)


# ------------------------------------------------------------------------------------------------- without settings


def test_exec_needs_settings_that_another_process_can_read():
    program = (
        "from django.conf import settings; settings.configure(INSTALLED_APPS=['django.contrib.contenttypes',"
        "'django.contrib.auth', 'django_jobqueue', 'tests.faults.app'],"
        "DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql'}}, JOBQUEUE={'START_METHOD': 'exec'});"
        "from django.core.management import execute_from_command_line as run; run(['manage.py', 'runjobs'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)

    assert done.returncode == 1
    assert "needs DJANGO_SETTINGS_MODULE" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_start_method_is_refused():
    (problem,) = find_problems({"START_METHOD": "spawn"})

    assert problem.id == "jobqueue.E003"
    assert "must be None or one of 'fork', 'exec', 'thread', not 'spawn'" in problem.message
