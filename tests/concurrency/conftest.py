"""Sessions to steer by hand, and a laboratory of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from django_jobqueue.models import Queue

from .race_checks import check, summary
from .race_lab import Laboratory, Plan
from .sessions import Session


@pytest.fixture
def session(transactional_db: None) -> Iterator[Callable[[], Session]]:
    """``session()``: another connection, in a thread of its own."""
    opened: list[Session] = []

    def make() -> Session:
        opened.append(Session())
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def other(session: Callable[[], Session]) -> Session:
    return session()


@pytest.fixture
def third(session: Callable[[], Session]) -> Session:
    return session()


@pytest.fixture(params=["fifo_queue", "singleton_queue"])
def laned_queue(request: pytest.FixtureRequest) -> Queue:
    """A queue whose jobs of one key wait for each other."""
    queue: Queue = request.getfixturevalue(request.param)
    return queue


@pytest.fixture(scope="session")
def _processes(django_db_setup: None) -> Iterator[Laboratory]:
    laboratory = Laboratory(connection.settings_dict)
    yield laboratory
    laboratory.close()


@pytest.fixture
def laboratory(_processes: Laboratory, transactional_db: None) -> Callable[[Plan], None]:
    """``laboratory(plan)``: run it, and check every law."""

    def run(plan: Plan) -> None:
        report = _processes.run(plan)
        print(summary(report))
        check(plan, report)

    return run
