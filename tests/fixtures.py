"""Fixtures for every test: a queue of each policy, and races between connections."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_jobqueue import handlers, services, testing
from django_jobqueue.models import Queue
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.process_memory import ProcessMemory

from .factories import QueueFactory

Race = Callable[..., list[Any]]

FORGET = """
TRUNCATE jobqueue_job CASCADE;
DELETE FROM pg_statistic WHERE starelid = 'jobqueue_job'::regclass
    OR starelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'jobqueue_job'::regclass);
SELECT pg_stat_reset(), pg_stat_clear_snapshot()
"""


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    """No test knows what another one's verbs have remembered."""
    ProcessMemory.forget_all()


@pytest.fixture
def untouched_table(db: None) -> None:
    """The job table as a new one: without the dead rows and statistics that earlier tests have left of it.

    The lock of a TRUNCATE also keeps autovacuum from it until the test ends.
    """
    with connection.cursor() as cursor:
        cursor.execute(FORGET)


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
def other_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """A second database on the same server, without any table; dropped afterwards."""
    name = f"{connection.settings_dict['NAME']}_migrations"
    with django_db_blocker.unblock():
        settings = connection.settings_dict
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
            cursor.execute(f"CREATE DATABASE {name}")
        connections.databases["other"] = {**settings, "NAME": name}
        try:
            yield "other"
        finally:
            connections["other"].close()
            del connections["other"]
            del connections.databases["other"]
            with connection._nodb_cursor() as cursor:
                cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def handlers_not_imported(settings: Any) -> Iterator[str]:
    """As in a web process: the handler of an installed app, by name, whose module is not imported yet."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.late_handlers"]
    with handlers.registry.restored(empty=True):
        yield "late.report"
    sys.modules.pop("tests.late_handlers.jobs", None)


@pytest.fixture
def race() -> Race:
    """``race(n, fn)``: ``fn`` in ``n`` threads at once; only for tests with ``transaction=True``."""
    return testing.race
