"""A queue with a part of the job table to itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, QueueNotFound
from django_jobqueue.models import Job, Queue
from django_jobqueue.partitions import DEFAULT, partition_name
from django_jobqueue.states import JobState
from tests.factories import JobFactory
from tests.past import ago, rewrite

from .lives import sent


def exists(table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass(%s) AND inhparent = 'jobqueue_job'::regclass",
            [table],
        )
        return cursor.fetchone() is not None


def lies_in(job: Job) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM jobqueue_job WHERE id = %s", [job.pk])
        return str(cursor.fetchone()[0])


def check_a_partition_lives_and_dies_with_its_queue() -> None:
    table = partition_name("own")
    assert not exists(table)

    services.create_queue("own", partition=True)
    assert exists(table)
    job = sent("own")
    assert lies_in(job) == table
    assert lies_in(sent("default")) == DEFAULT

    assert services.delete_queue("own") is True
    assert not exists(table)
    assert not Job.objects.filter(pk=job.pk).exists()
    assert not Queue.objects.filter(pk="own").exists()


@pytest.mark.django_db
def test_a_partition_lives_and_dies_with_its_queue_inside_a_test_s_transaction():  # R093 R125
    check_a_partition_lives_and_dies_with_its_queue()


@pytest.mark.django_db(transaction=True)
def test_a_partition_lives_and_dies_with_its_queue():  # R093 R125
    check_a_partition_lives_and_dies_with_its_queue()


@pytest.mark.django_db(transaction=True)
def test_a_partition_cannot_be_made_or_dropped_inside_atomic(partitioned_queue):
    job = sent(partitioned_queue)

    with pytest.raises(InvalidOption, match="atomic"), transaction.atomic():
        services.create_queue("own", partition=True)
    with pytest.raises(InvalidOption, match="atomic"), transaction.atomic():
        services.delete_queue(partitioned_queue.name)

    assert not exists(partition_name("own"))
    assert not Queue.objects.filter(pk="own").exists()
    assert exists(partition_name(partitioned_queue.name))
    assert Job.objects.filter(pk=job.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_a_refused_partition_leaves_no_queue_where_the_caller_catches_it():
    with transaction.atomic():
        with pytest.raises(InvalidOption, match="atomic"):
            services.create_queue("own", partition=True)
        assert not Queue.objects.filter(pk="own").exists()
        services.create_queue("other")

    assert list(Queue.objects.filter(name__in=["own", "other"]).values_list("name", flat=True)) == ["other"]


@pytest.mark.django_db(transaction=True)
def test_no_job_is_lost_that_is_sent_while_a_partition_is_made(race):  # R093 R381
    """Making it waits for an open transaction, and all the while the queue may be seen already."""
    holding, making = Event(), Event()

    def hold() -> None:
        with transaction.atomic():
            sent("default")
            holding.set()
            assert making.wait(30)

    def make() -> None:
        assert holding.wait(30)
        services.create_queue("own", partition=True)

    def send() -> UUID | None:
        assert holding.wait(30)
        try:
            wait_until(lambda: Queue.objects.filter(pk="own").exists() or is_waiting_for_a_lock())
            return sent("own").pk
        except QueueNotFound:
            return None  # not there yet, so nothing was promised
        finally:
            making.set()

    try:
        *_, job = race(3, hold, make, send)

        assert exists(partition_name("own"))
        assert job is None or lies_in(Job.objects.get(pk=job)) == partition_name("own")
    finally:
        services.delete_queue("own")


def is_waiting_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND relation IS NOT NULL")
        return cursor.fetchone() is not None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_queue_without_a_partition_can_be_made_inside_atomic(db):
    with transaction.atomic():
        services.create_queue("common")

    assert not exists(partition_name("common"))


def test_jobs_of_a_partitioned_queue_live_like_all_others(partitioned_queue):  # R093
    first, second, third = sent(partitioned_queue), sent(partitioned_queue), sent(partitioned_queue)

    claimed = services.fetch(partitioned_queue.name, 3)

    assert claimed == [first, second, third]
    services.complete(claimed[0], {"n": 1})
    assert services.fail(claimed[1], "boom").will_retry
    services.cancel([claimed[2]])
    found = {job.pk: job.state for job in Job.objects.in_queue(partitioned_queue.name)}
    assert found == {first.pk: JobState.COMPLETED, second.pk: JobState.RETRY, third.pk: JobState.CANCELLING}
    assert services.stats(partitioned_queue.name).total == 3
    assert services.delete([first.pk]) == 1
    assert services.purge(partitioned_queue.name) == 2


def test_keys_of_a_partitioned_queue_are_strictly_ordered(partitioned_fifo_queue):  # R029 R093
    name = partitioned_fifo_queue.name
    first, second, other = (sent(name, singleton_key=key) for key in ("a", "a", "b"))

    (one, two) = services.fetch(name, 10)
    assert [one, two] == [first, other]
    services.fail(one, "boom", for_good=True)
    assert services.fetch(name, 10) == []
    assert services.blocked_keys(name) == ["a"]

    services.delete(one.pk, queue=name)
    assert services.fetch(name, 10) == [second]


def test_a_name_that_is_no_identifier_still_gets_its_partition(db):
    name = "2nd-Mail.eu/out:x_" + "y" * 80

    services.create_queue(name, partition=True)

    assert lies_in(sent(name)) == partition_name(name)
    assert services.delete_queue(name)


def test_names_that_look_alike_get_different_partitions(db):
    names = ["a.b", "a-b", "a_b", "A_B", "x" * 99 + "1", "x" * 99 + "2"]

    assert len({partition_name(name) for name in names}) == len(names)
    assert all(len(partition_name(name)) <= 63 for name in names)


def test_a_dead_letter_crosses_partitions(partitioned_queue, queue):  # R095
    services.update_queue(partitioned_queue.name, dead_letter=queue.name, retry_limit=0)
    sent(partitioned_queue, {"n": 1})

    (job,) = services.fetch(partitioned_queue.name)
    services.fail(job, "boom")

    copy = Job.objects.get(queue=queue)
    assert (copy.data, copy.source_id, lies_in(copy)) == ({"n": 1}, job.pk, DEFAULT)


def test_old_jobs_of_a_partition_are_cleaned_up(partitioned_queue):
    job = JobFactory(queue=partitioned_queue, state=JobState.COMPLETED)
    rewrite(job, delete_at=ago(seconds=1))

    assert services.cleanup() == {partitioned_queue.name: 1}
