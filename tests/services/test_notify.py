"""Wake-ups: after commit, once per queue and transaction, and never needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from django_jobqueue import services
from django_jobqueue.engine.sql.send import CHANNEL
from django_jobqueue.models import Job
from django_jobqueue.states import JobState

from .lives import claimed, job_in, rolled_back, sent

pytestmark = pytest.mark.django_db(transaction=True)

Heard = Callable[[], list[str]]
END = "the end"


def other_connection() -> psycopg.Connection[Any]:
    """A connection that Django knows nothing of."""
    params = connection.get_connection_params()
    known = {name: params[name] for name in ("dbname", "host", "port", "user", "password") if params.get(name)}
    return psycopg.connect(**known, autocommit=True)


@pytest.fixture
def heard(db: None) -> Iterator[Heard]:
    """The queues that were woken since it was last asked.

    A notification of our own marks the end: the server delivers in the order of commits, so nothing is still under way.
    """
    with other_connection() as listener:
        listener.execute(f"LISTEN {CHANNEL}")

        def listen() -> list[str]:
            with other_connection() as other:
                other.execute("SELECT pg_notify(%s, %s)", [CHANNEL, END])
            found: list[str] = []
            for notification in listener.notifies(timeout=30):
                if notification.payload == END:
                    return found
                found.append(notification.payload)
            raise AssertionError("the server did not answer")

        yield listen


def test_a_send_wakes_its_queue(queue, heard):  # R190
    sent(queue)

    assert heard() == [queue.name]


def test_a_send_wakes_nobody_before_its_transaction_is_committed(queue, heard):  # R190
    with transaction.atomic():
        sent(queue)
        assert heard() == []

    assert heard() == [queue.name]


def test_a_send_that_was_rolled_back_wakes_nobody(queue, heard):  # R190 R191 F28
    with rolled_back():
        sent(queue)

    assert heard() == []


def test_a_send_whose_savepoint_was_rolled_back_wakes_nobody(queue, short_queue, heard):  # R190
    with transaction.atomic():
        sent(short_queue)
        with rolled_back():
            sent(queue)
            sent(short_queue, singleton_key="k")

    assert heard() == [short_queue.name]


def test_many_sends_of_one_transaction_wake_each_queue_once(queue, fifo_queue, heard):  # R190 R198
    with transaction.atomic():
        for n in range(20):
            sent(queue, tags=[f"t{n % 3}"])
            sent(fifo_queue, singleton_key=f"k{n}")
        services.send_many(queue.name, [{}, {}])

    assert sorted(heard()) == sorted([queue.name, fifo_queue.name])


def test_many_queues_are_woken_once_each(heard):  # R190
    names = [services.create_queue(f"q{n}").name for n in range(12)]
    with transaction.atomic():
        for name in names * 2:
            sent(name)

    assert sorted(heard()) == sorted(names)


def test_sends_in_nested_blocks_wake_their_queue_once(queue, heard):  # R190
    with transaction.atomic():
        with transaction.atomic():
            sent(queue)
        sent(queue)
        with transaction.atomic():
            sent(queue)

    assert heard() == [queue.name]


def test_a_later_send_is_not_lost_with_the_savepoint_of_an_earlier_one(queue, heard):  # R190
    with transaction.atomic():
        with rolled_back():
            sent(queue)
        sent(queue)

    assert heard() == [queue.name]


def test_a_send_after_many_other_hooks_still_wakes_its_queue_once(queue, heard):  # R190
    with transaction.atomic():
        sent(queue)
        for _ in range(20):
            transaction.on_commit(lambda: None)
        sent(queue)

    assert heard() == [queue.name]


def test_a_batch_wakes_its_queue_once_whatever_its_tags(queue, heard):  # R198
    services.send_many(queue.name, [{"tags": [f"t{n}"]} for n in range(50)])

    assert heard() == [queue.name]


def test_a_batch_of_nothing_wakes_nobody(queue, heard):  # R195 R198
    services.send_many(queue.name, [])

    assert heard() == []


def test_a_refused_send_wakes_nobody(exclusive_queue, heard):
    sent(exclusive_queue)
    heard()

    assert services.send(exclusive_queue.name) is None

    assert heard() == []


def test_a_job_that_waits_again_wakes_its_queue(queue, heard):  # R252 R288 R301
    verbs: list[Callable[[Job], object]] = [
        lambda job: services.fail(job, "boom"),
        lambda job: services.give_back(job, "drained"),
        lambda job: services.set_visibility(job, 0),
        lambda job: services.mark_worker_unresponsive(job.assignee),
        lambda job: services.reset_running(),
    ]
    for number, verb in enumerate(verbs):
        job = claimed(queue, worker=f"w{number}")
        heard()

        verb(job)

        assert heard() == [queue.name]


def test_taking_many_jobs_back_wakes_each_queue_once(queue, fifo_queue, heard):  # R288 R301
    for number in range(3):
        claimed(queue, worker="ann")
        claimed(fifo_queue, worker="ann", singleton_key=f"k{number}")
    heard()

    services.mark_worker_unresponsive("ann")

    assert sorted(heard()) == sorted([queue.name, fifo_queue.name])


def test_completing_wakes_those_who_wait_for_the_next_of_its_key(fifo_queue, heard):  # R241
    job = claimed(fifo_queue, singleton_key="k")
    sent(fifo_queue, singleton_key="k")
    services.fetch(fifo_queue.name)
    heard()

    services.complete(job)

    assert heard() == [fifo_queue.name]


@pytest.mark.parametrize(
    "complete", (services.complete, lambda job: services.finish_many([(job, None)])), ids=["one", "a batch"]
)
@pytest.mark.parametrize("grouping", ("head", None))
def test_completing_a_job_of_a_group_wakes_those_who_read_groups(queue, heard, grouping, complete):  # R066
    sent(queue, group_key="g")
    (job,) = services.fetch(queue.name, grouping=grouping)
    heard()

    complete(job)

    assert heard() == ([queue.name] if grouping else [])


def test_completing_the_last_of_a_key_wakes_nobody(fifo_queue, heard):
    one, other = claimed(fifo_queue), claimed(fifo_queue)
    heard()

    services.complete(one)
    services.finish_many([(other, None)], hand_over=True)

    assert heard() == []


def test_an_operators_retry_wakes_its_queue(queue, heard):
    job = job_in(JobState.FAILED, queue)
    heard()

    services.retry(job.pk)

    assert heard() == [queue.name]


def test_without_notifications_the_same_jobs_are_sent_and_found(queue, heard, settings):  # R190
    settings.JOBQUEUE = {"NOTIFY": False}

    job = claimed(queue)
    services.fail(job, "boom")
    services.send_many(queue.name, [{}, {}])
    services.reset_running()

    assert heard() == []
    assert len(services.fetch(queue.name, 10)) == 3


def test_a_wake_up_that_cannot_be_sent_does_not_undo_the_send(queue, caplog):  # R191
    def end_our_session() -> None:
        with other_connection() as other:
            pid = connection.connection.info.backend_pid
            assert other.execute("SELECT pg_terminate_backend(%s, 30000)", [pid]).fetchone() == (True,)

    with transaction.atomic():
        transaction.on_commit(end_our_session)
        job = sent(queue)
    connection.close()

    assert "could not notify workers" in caplog.text
    assert services.fetch(queue.name) == [job]


def test_a_send_works_in_a_transaction_that_is_managed_by_hand(queue):  # R191
    transaction.set_autocommit(False)
    try:
        job = sent(queue)
        ids = services.send_many(queue.name, [{}])
        transaction.commit()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)

    assert set(Job.objects.values_list("pk", flat=True)) == {job.pk, *ids}


@pytest.mark.parametrize("name", ("fifo_queue", "singleton_queue"))
def test_a_release_that_stays_pending_wakes_no_worker(request, heard, name):  # F78: else idle workers would not rest
    queue = request.getfixturevalue(name)
    services.send(queue.name, singleton_key="a")
    [job] = services.fetch(queue.name)
    [next_job] = services.send_many(queue.name, [{"singleton_key": "a"}])
    services.fetch(queue.name)  # holds it
    with other_connection() as other, other.transaction():
        other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [next_job])
        services.complete(job)
        heard()

        assert services.release_pending() == 0
        assert services.fetch(queue.name) == []

        assert heard() == []
    assert services.release_pending() == 1
    assert heard() == [queue.name]
