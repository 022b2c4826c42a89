"""A worker inside the test's process, and handlers that a test declares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobqueue import handlers, services
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from django_jobqueue.worker import work
from tests.past import reread
from tests.waiting import PATIENCE, until

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Handlers that a test declares are forgotten after it."""
    with handlers.registry.restored(empty=True):
        yield


@pytest.fixture
def run(transactional_db: None) -> Iterator[Run]:
    """``run("queue", concurrency=2)``: a worker that is stopped after the test."""
    workers = []
    before = set(threading.enumerate())

    def start(queue: Any, handler: Any = None, **options: Any) -> Any:
        worker = work(queue, handler, **{"poll_seconds": 0.05, **options})
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        assert worker.stop(20), "the worker did not stop"
    ours = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("jobqueue")]
    for thread in ours:
        thread.join(5)
    assert not [thread.name for thread in ours if thread.is_alive()], "threads are left"


class Gate:
    """An event that a handler waits for, and that says when the handler is there."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


def sent(queue: Any, data: Any = None, **options: Any) -> Job:
    job: Job | None = services.send(str(queue), data, **options)
    assert job is not None
    return job


def ends(job: Job | None, state: str = JobState.COMPLETED, seconds: float = PATIENCE) -> Job:
    assert job is not None
    try:
        until(lambda: reread(job).state == state, f"it is {state}", seconds)
    except AssertionError as error:
        now = reread(job)
        raise AssertionError(f"{error}: it is {now.state}, attempt {now.attempt}, {now.reason}: {now.error}") from None
    return reread(job)
