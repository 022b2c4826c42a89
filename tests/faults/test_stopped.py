"""Workers that are told to stop, to dump their stacks, or to restart."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job, Worker
from django_jobqueue.states import JobState
from tests.past import reread
from tests.waiting import until

from .conftest import LANES, ends, runs, send
from .history import check
from .runner import ROOT, children_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_idle_worker_leaves_within_a_second(start):  # F5 G6 R389
    worker = start(processes=2)

    began = time.monotonic()
    code = worker.stop()

    assert time.monotonic() - began < 1
    assert code == 0
    assert set(Worker.objects.values_list("exit_text", flat=True)) == {"has stopped"}
    assert not Worker.objects.filter(stopped_at=None).exists()


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
def test_a_busy_worker_finishes_what_runs(start, history, gates, number):  # F5 G6 R389
    worker = start("--concurrency", "2")
    job = send("work", {"gate": "go"})
    runs(history, job)

    worker.tell(number)
    until(lambda: worker.says("stopping"), "it is stopping")
    until(lambda: not is_taken(send("work")), "it claims nothing more")
    gates.open("go")

    assert worker.ended() == 0
    done = reread(job)
    assert (done.state, done.attempt, done.retry_count) == (JobState.COMPLETED, 1, 0)


def is_taken(job, seconds: float = 0.5) -> bool:
    """Whether some worker claims it within a few looks."""
    deadline = time.monotonic() + seconds
    while reread(job).state == JobState.CREATED:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_what_does_not_end_within_the_grace_goes_back_uncharged(start, history, gates):  # F5 G6
    worker = start("--grace", "1", "--concurrency", "2")
    jobs = [send("work", {"gate": "never"}), send("async-work", {"seconds": 60}), send("work", {"gate": "never"})]
    for job in jobs[:2]:
        runs(history, job)

    began = time.monotonic()
    worker.tell()
    assert worker.ended() == 0

    assert 0.9 < time.monotonic() - began < 3
    for job in jobs:
        now = reread(job)
        assert now.state in (JobState.RETRY, JobState.CREATED)
        assert (now.retry_count, now.crashes) == (0, 0)
    assert {reread(job).state for job in jobs[:2]} == {JobState.RETRY}


def test_a_second_signal_returns_jobs_at_once(start, history, gates):  # F5 G6
    worker = start("--grace", "60", processes=2)
    jobs = [send("work", {"gate": "never"}) for _ in range(3)]
    for job in jobs:
        runs(history, job)

    worker.tell()
    until(lambda: worker.says("stopping"), "it is stopping")
    began = time.monotonic()
    worker.tell()

    assert worker.ended() == 0
    assert time.monotonic() - began < 2
    assert [(reread(job).state, reread(job).retry_count) for job in jobs] == [(JobState.RETRY, 0)] * 3


def test_what_runs_in_c_with_the_lock_held_does_not_delay_the_second_signal(start, history):  # F5 F8
    worker = start("--grace", "60")
    job = send("hold-gil", expire_in_seconds=100)
    runs(history, job)

    worker.tell()
    until(lambda: worker.says("stopping"), "it is stopping")
    worker.tell()

    assert worker.ended(6) == 0
    assert (reread(job).state, reread(job).retry_count) == (JobState.RETRY, 0)


@pytest.mark.parametrize("delay", (0.0, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03))
def test_a_worker_that_is_told_while_it_starts_leaves_soon(start, delay):  # F5 G6
    worker = start("--grace", "30", processes=2, wait=False)
    until(lambda: worker.says("worker started"), "it starts")

    time.sleep(delay)  # not to wait for something, but to hit another moment of the start
    worker.tell()

    assert worker.ended(3) == 0


def test_the_whole_group_may_be_told(start, history, gates):  # F5: a terminal, or systemd
    worker = start(processes=2)
    job = send("work", {"gate": "go"})
    runs(history, job)

    worker.kill_all(signal.SIGINT)
    until(lambda: worker.says("stopping"), "it is stopping")
    gates.open("go")

    assert worker.ended() == 0
    assert (reread(job).state, reread(job).attempt) == (JobState.COMPLETED, 1)


def test_a_child_that_is_told_alone_leaves_and_is_replaced(start, history, gates):  # F5
    worker = start()
    before = worker.children()
    job = send("work", {"gate": "go"})
    runs(history, job)

    os.kill(before[0], signal.SIGTERM)
    gates.open("go")

    assert ends(job, JobState.COMPLETED).attempt == 1
    until(lambda: worker.children() not in ([], before), "another child")
    ends(send("work"), JobState.COMPLETED)


def test_a_worker_can_be_stopped_from_elsewhere(start, history, gates):  # R389
    worker = start(processes=2)
    other = start()
    job = send("work", {"gate": "go"})
    runs(history, job)

    asked = services.stop_worker(worker.asked_name)
    until(lambda: worker.says("operator asked the worker to stop"), "it is stopping")
    gates.open("go")

    assert asked == 2
    assert worker.ended() == 0
    assert reread(job).attempt == 1
    assert other.process.poll() is None
    assert services.stop_worker("unknown") == 0


def test_quit_dumps_the_stacks_of_all_processes_and_nothing_ends(start, history, gates):
    worker = start()
    job = send("work", {"gate": "go"})
    runs(history, job)

    worker.tell(signal.SIGQUIT)
    for place in (r"jobs\.py", r"housekeeper\.py", r"supervisor\.py"):
        line = re.compile(rf'^  File "[\w/.-]+{place}", line \d+ in \w+$', re.MULTILINE)
        until(lambda line=line: line.search(worker.log), f"a stack with {place} is there, and readable")  # type: ignore[misc]
    gates.open("go")

    assert ends(job, JobState.COMPLETED).attempt == 1


def test_drain_works_off_what_is_there_and_leaves(start, history):
    jobs = [send("work") for _ in range(20)]
    lane = [send("lane-work", queue=LANES, singleton_key=f"k{n % 3}") for n in range(30)]
    bad = send("exit", {"code": 1})

    worker = start("--drain", wait=False, processes=2)

    assert worker.ended(30) == 0
    assert {reread(job).state for job in [*jobs, *lane]} == {JobState.COMPLETED}
    assert reread(bad).state == JobState.FAILED
    check(history, LANES)


def test_a_child_is_replaced_after_max_jobs(start, history):
    start("--max-jobs", "5", "--concurrency", "1")

    jobs = [send("work") for _ in range(25)]

    done = [ends(job, JobState.COMPLETED) for job in jobs]
    per_child = Counter(pid_of(job) for job in done)
    assert max(per_child.values()) <= 5
    assert {job.retry_count for job in done} == {0}
    assert Worker.objects.filter(exit_text="was replaced").exists()


def test_a_child_that_grew_too_large_is_replaced_when_its_handlers_ended(start, history, gates):  # MEMORY_LIMIT_MB
    worker = start("--concurrency", "2", MEMORY_LIMIT_MB=250)
    slow = send("work", {"gate": "go"})
    runs(history, slow)
    before = worker.children()

    ends(send("grow", {"megabytes": 300}), JobState.COMPLETED)
    until(lambda: worker.says("larger than MEMORY_LIMIT_MB"), "it notices")
    assert worker.children() == before
    gates.open("go")

    assert ends(slow, JobState.COMPLETED).attempt == 1
    until(lambda: worker.children() not in ([], before), "another child")
    assert pid_of(ends(send("work"), JobState.COMPLETED)) not in before


def pid_of(job: Job) -> int:
    assert job.output is not None
    return int(job.output["pid"])


def test_two_workers_of_one_name_both_run_and_are_told_apart(start, history, gates):  # F18
    first = start("--name", "twin", "--concurrency", "1")
    second = start("--name", "twin", "--concurrency", "1", wait=False)
    until(lambda: second.says("name reused"), "the warning")
    second.ready()
    jobs = [send("work", {"gate": "go"}) for _ in range(2)]
    for job in jobs:
        runs(history, job)

    first.kill_all()
    first.process.wait()
    states = {JobState.ACTIVE, JobState.UNKNOWN_RETRY}
    until(lambda: {reread(job).state for job in jobs} == states, "one of them is taken back")
    gates.open("go")

    done = [ends(job, JobState.COMPLETED) for job in jobs]
    assert not first.says("name reused")
    assert sorted(job.retry_count for job in done) == [0, 1]  # the other twin's job was left alone
    assert Worker.objects.filter(name="twin").count() == 2


# ------------------------------------------------------------------------------------------------------------ health


def free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def get(port: int, path: str) -> tuple[int, bytes]:
    """The answer; 0 if there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def test_probes_are_answered(start):
    port = free_port()
    start("--health-port", str(port))
    until(lambda: get(port, "/readyz")[0] == 200, "it is ready")

    status, body = get(port, "/healthz")

    facts = json.loads(body)
    assert (status, facts["ok"], facts["children"]) == (200, True, 1)
    assert get(port, "/nothing")[0] == 404


def test_probes_are_answered_again_when_the_keeper_died(start):
    port = free_port()
    worker = start("--health-port", str(port))
    until(lambda: get(port, "/healthz")[0] == 200, "it is well")

    os.kill(worker.housekeeper(), signal.SIGKILL)

    until(lambda: worker.says("housekeeping process"), "its death is logged")
    until(lambda: get(port, "/healthz")[0] == 200, "it is well again")


def test_a_port_that_is_taken_is_told_at_once(start):
    with closing(socket.socket()) as taken:
        taken.bind(("", 0))
        taken.listen()
        worker = start("--health-port", str(taken.getsockname()[1]), wait=False)

        assert worker.ended(10) != 0

    assert "Traceback" not in worker.log
    assert "port" in worker.log


# ------------------------------------------------------------------------------------------------------------ reload


@pytest.fixture
def touched():
    """A file that the worker has loaded."""
    return Path(ROOT / "tests/faults/app/__init__.py")


def worker_of(runner) -> int:
    """The real worker below the process that watches the files."""
    (pid,) = until(lambda: children_of(runner.pid), "the worker starts")
    return pid


def test_a_changed_file_starts_the_worker_anew_and_the_job_is_not_charged(start, history, gates, touched):  # F17
    runner = start("--reload", "--grace", "0", wait=False)
    before = worker_of(runner)
    job = send("work", {"gate": "go"})
    runs(history, job)

    touched.touch()
    runs(history, job, times=2)
    gates.open("go")

    done = ends(job, JobState.COMPLETED)
    assert worker_of(runner) != before
    assert (done.attempt, done.retry_count) == (2, 0)
    runner.tell()
    assert runner.ended() == 0


def test_ctrl_c_with_reload_lets_handlers_end(start, history, gates):  # F5 F17
    runner = start("--reload", wait=False)
    job = send("work", {"gate": "go"})
    runs(history, job)

    os.killpg(runner.pid, signal.SIGINT)  # what a terminal does
    until(lambda: runner.says("stopping"), "it is stopping")
    gates.open("go")

    assert runner.ended() == 0
    assert (reread(job).state, reread(job).attempt) == (JobState.COMPLETED, 1)
