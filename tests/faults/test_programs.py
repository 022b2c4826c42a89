"""Programs that handlers started: they end with the process of the handler (F84)."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Callable
from typing import Any

import pytest

from django_jobqueue.models import Job
from tests.waiting import until

from .conftest import runs, send
from .history import History
from .runner import Runner, children_of, is_alive

pytestmark = pytest.mark.django_db(transaction=True)


def programs(history: History) -> list[dict[str, Any]]:
    return [line for line in history.lines() if line["event"] == "program"]


def running_program(history: History, **data: Any) -> tuple[Job, int]:
    """A job whose handler waits for a program, and the program."""
    job = send("run-program", data or None)
    until(lambda: programs(history), "its program runs")
    program: int = programs(history)[0]["program"]
    assert is_alive(program)
    return job, program


def test_a_program_is_gone_before_the_job_of_a_killed_child_runs_again(start, history):
    start()
    job, _ = running_program(history)

    os.kill(history.runs(job)[0].pid, signal.SIGKILL)
    runs(history, job, times=2)
    until(lambda: len(programs(history)) == 2, "its program runs again")

    assert programs(history)[1]["left"] == []


def kill_supervisor(worker: Runner) -> None:
    os.kill(worker.pid, signal.SIGKILL)


def kill_group(worker: Runner) -> None:
    """As a process manager does that knows no cgroups."""
    os.killpg(worker.pid, signal.SIGKILL)


@pytest.mark.parametrize("kill", (kill_supervisor, kill_group))
def test_a_program_ends_with_a_killed_supervisor(start, history, kill: Callable[[Runner], None]):
    worker = start(processes=2)
    family = children_of(worker.pid)
    _, program = running_program(history)

    kill(worker)
    worker.process.wait()

    until(lambda: not is_alive(program), "the program is gone", 2)
    until(lambda: not any(map(is_alive, family)), "children and housekeeper are gone", 2)


def test_a_program_ends_with_a_child_that_had_to_stop(start, history):
    worker = start("--grace", "0.2")
    _, program = running_program(history)

    assert worker.stop() == 0

    until(lambda: not is_alive(program), "the program is gone", 2)


def test_a_program_with_a_session_of_its_own_goes_on(start, history):
    """As the documentation says."""
    start()
    job, program = running_program(history, new_session=True)

    os.kill(history.runs(job)[0].pid, signal.SIGKILL)
    runs(history, job, times=2)
    until(lambda: len(programs(history)) == 2, "its program runs again")

    assert programs(history)[1]["left"] == [program]
    for line in programs(history):
        os.kill(line["program"], signal.SIGKILL)


def test_in_a_terminal_all_processes_are_in_its_group(start, history):
    """Else a handler with a breakpoint() could not read from it."""
    ours, theirs = pty.openpty()
    try:
        worker = start(stdin=theirs)

        assert {os.getpgid(pid) for pid in children_of(worker.pid)} == {worker.pid}
        assert worker.stop() == 0
    finally:
        os.close(ours)
        os.close(theirs)
