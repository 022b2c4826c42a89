"""Workers that a test starts, and their history; whatever is left of them is ended after the test."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job, Queue
from django_jobqueue.policies import QueuePolicy
from tests.factories import QueueFactory
from tests.past import reread
from tests.waiting import PATIENCE, until

from .history import History
from .runner import Runner

Start = Callable[..., Runner]
FAULTS, LANES = "faults", "lanes"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture
def queues(transactional_db: None) -> tuple[Queue, Queue]:
    """A standard and an ordered queue."""
    return QueueFactory(name=FAULTS), QueueFactory(name=LANES, policy=QueuePolicy.KEY_STRICT_FIFO)


@pytest.fixture
def start(queues: tuple[Queue, Queue], tmp_path: Path) -> Iterator[Start]:
    """``start("--processes", "2", EXPIRE_GRACE_SECONDS=1)``: a worker; its log is shown if the test fails."""
    runners: list[Runner] = []

    def begin(*arguments: str, processes: int = 1, wait: bool = True, stdin: int = DEVNULL, **settings: Any) -> Runner:
        given = ("--processes", str(processes), *arguments)
        runner = Runner(tmp_path, *given, settings=settings, number=len(runners) + 1, stdin=stdin)
        runners.append(runner)
        seconds = 6 * PATIENCE if settings.get("START_METHOD") == "exec" else PATIENCE
        return runner.ready(processes, seconds) if wait else runner

    yield begin
    for runner in runners:
        if runner.process.poll() is None:
            runner.kill_all(signal.SIGCONT)
        runner.close()
        print(f"--- log of {runner.name} (exit code {runner.process.returncode})\n{runner.log[-8000:]}")


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history.jsonl")


class Gates:
    """Files that handlers wait for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, name: str) -> None:
        (self.folder / f"gate-{name}").touch()


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path)


def send(name: str, data: Any = None, *, queue: str = FAULTS, **options: Any) -> Job:
    """A job for the handler of this name in the app."""
    if queue == LANES:
        options.setdefault("singleton_key", "key")
    job: Job | None = services.send(queue, data, name=name, **options)
    assert job is not None
    return job


def ends(job: Job, state: str, seconds: float = PATIENCE) -> Job:
    """Wait until it is in this state, and return it."""

    try:
        until(lambda: reread(job).state == state, f"{job.name} is {state}", seconds)
    except AssertionError as error:
        now = reread(job)
        raise AssertionError(f"{error}: it is {now.state}, attempt {now.attempt}, {now.reason}: {now.error}") from None
    return reread(job)


def runs(history: History, job: Job, times: int = 1, seconds: float = PATIENCE) -> None:
    """Wait until its handler has begun so often."""
    until(lambda: history.begun(job) >= times, f"{job.name} has begun {times} times", seconds)
