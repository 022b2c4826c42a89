"""Waiting for a job: woken by a notification, or by looking now and then."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import override_settings

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.grouping import Grouping
from django_jobqueue.models import Job
from tests.waiting import until

from .lives import sent

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 60.0
GROUPINGS = [None, *Grouping.values]


def waiting(queue: Any, **options: Any) -> Future[list[Job]]:
    """A reader in a thread of its own."""

    def work() -> list[Job]:
        try:
            return services.fetch(queue.name, 10, **options)
        finally:
            connections.close_all()

    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def is_listening() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_a_waiting_reader_is_woken_by_a_notification(queue, grouping):  # R060 R061
    reader = waiting(queue, grouping=grouping, wait=LONG, poll_interval=LONG)
    until(is_listening, "it listens")

    job = sent(queue, group_key="A")

    assert reader.result(LONG / 2) == [job]


@override_settings(JOBQUEUE={"NOTIFY": False})
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_without_notifications_it_looks_now_and_then(queue, grouping):  # R060 R061
    reader = waiting(queue, grouping=grouping, wait=LONG, poll_interval=0.05)

    job = sent(queue, group_key="A")

    assert reader.result(LONG / 2) == [job]
    until(lambda: not is_listening(), "nobody listens")


def test_looking_now_and_then_finds_what_nobody_was_told_of(queue):  # R060
    reader = waiting(queue, grouping="fill", wait=LONG, poll_interval=0.05)
    until(is_listening, "it listens")
    with override_settings(JOBQUEUE={"NOTIFY": False}):
        job = sent(queue, group_key="A")

    assert reader.result(LONG / 2) == [job]


def test_it_waits_no_longer_than_it_was_told(queue):  # R060 R311
    begin = time.monotonic()

    assert services.fetch(queue.name, wait=0.2) == []
    assert time.monotonic() - begin >= 0.2
    until(lambda: not is_listening(), "nobody listens")


def test_what_is_there_already_is_not_waited_for(queue):  # R060
    job = sent(queue)

    assert services.fetch(queue.name, wait=LONG) == [job]


def test_nobody_waits_with_a_wait_of_zero(queue):
    assert services.fetch(queue.name, wait=0) == []


def test_several_readers_share_one_listener(queue):  # R060
    readers = [waiting(queue, wait=LONG, poll_interval=LONG) for _ in range(3)]
    until(is_listening, "they listen")

    def listeners() -> int:
        return sum(thread.name == "jobqueue-listener" for thread in threading.enumerate())

    assert listeners() == 1
    for _ in readers:
        sent(queue)
        until(lambda: not Job.objects.eligible().exists(), "a reader claimed it")
    assert sorted(len(reader.result(LONG / 2)) for reader in readers) == [1, 1, 1]
    until(lambda: not listeners(), "the listener is gone")


@pytest.mark.parametrize(("option", "value"), (("wait", -1), ("wait", "1"), ("poll_interval", 0)))
def test_bad_times_are_refused(queue, option, value):
    with pytest.raises(InvalidOption, match=option):
        services.fetch(queue.name, **{"wait": 1, option: value})


def test_nobody_waits_inside_a_transaction(queue):
    with transaction.atomic(), pytest.raises(InvalidOption, match="inside a transaction"):
        services.fetch(queue.name, wait=1)
