"""Fixtures for every test: a queue of each policy, and races between connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connections

from django_jobqueue import services
from django_jobqueue.models import Queue
from django_jobqueue.policies import QueuePolicy

from .factories import QueueFactory

PATIENCE_SECONDS = 60

Race = Callable[..., list[Any]]


@pytest.fixture
def queue(db: None) -> Queue:
    """A standard queue."""
    return QueueFactory(name="work")


@pytest.fixture
def fifo_queue(db: None) -> Queue:
    return QueueFactory(name="orders", policy=QueuePolicy.KEY_STRICT_FIFO)


@pytest.fixture
def singleton_queue(db: None) -> Queue:
    return QueueFactory(name="reports", policy=QueuePolicy.SINGLETON)


@pytest.fixture
def stately_queue(db: None) -> Queue:
    return QueueFactory(name="syncs", policy=QueuePolicy.STATELY)


@pytest.fixture
def short_queue(db: None) -> Queue:
    return QueueFactory(name="refreshes", policy=QueuePolicy.SHORT)


@pytest.fixture
def exclusive_queue(db: None) -> Queue:
    return QueueFactory(name="backups", policy=QueuePolicy.EXCLUSIVE)


@pytest.fixture
def partitioned_queue(db: None) -> Iterator[Queue]:
    """A standard queue with a part of the job table to itself; it is dropped again, also after ``transaction=True``."""
    made = services.create_queue("partitioned", partition=True)
    yield made
    services.delete_queue(made.name)


@pytest.fixture
def partitioned_fifo_queue(db: None) -> Iterator[Queue]:
    made = services.create_fifo_queue("partitioned-orders", partition=True)
    yield made
    services.delete_queue(made.name)


@pytest.fixture
def race() -> Race:
    """``race(n, fn)``: ``fn`` in ``n`` threads at once, each with a connection of its own; what each returned.

    ``race(n, first, second, …)`` gives the threads these functions in turn. What one raises is raised.
    Only for tests with ``transaction=True``, because the others' rows are seen by nobody else.
    """

    def run(n: int, *fns: Callable[[], Any]) -> list[Any]:
        barrier = Barrier(n, timeout=PATIENCE_SECONDS)

        def runner(fn: Callable[[], Any]) -> Any:
            try:
                connections["default"].ensure_connection()
                barrier.wait()
                return fn()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(n) as pool:
            futures = [pool.submit(runner, fns[number % len(fns)]) for number in range(n)]
            return [future.result(timeout=PATIENCE_SECONDS) for future in futures]

    return run
