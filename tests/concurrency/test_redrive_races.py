"""A redrive beside other redrives, workers and operators: each dead letter is redriven once, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid5

import pytest
from django.db import OperationalError

from django_jobqueue import services
from django_jobqueue.models import Job, Queue
from django_jobqueue.testing import race
from tests.factories import QueueFactory

from .sessions import Session, scalar
from .steps import dead, fetched, sent, state_of

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def orders(transactional_db: None) -> Queue:
    letters = QueueFactory(name="letters")
    return QueueFactory(name="orders", policy="key_strict_fifo", dead_letter=letters, retry_limit=0)


def letters() -> int:
    return Job.objects.in_queue("letters").count()


def test_two_redrives_at_once_move_each_letter_once(orders):
    there = [dead(orders, f"there {n}") for n in range(15)]
    gone = [dead(orders, f"gone {n}") for n in range(15)]
    services.delete([job.pk for job in gone])

    both = race(2, lambda: services.redrive("letters"))

    assert sum(map(len, both)) == 30
    assert letters() == 0
    assert Job.objects.in_queue("orders").count() == 30
    assert {state_of(job) for job in there} == {"retry"}
    assert set(Job.objects.filter(source_queue="orders").values_list("source_id", flat=True)) == {j.pk for j in gone}


@pytest.mark.parametrize("is_gone", (False, True))
def test_the_second_redrive_waits_for_the_first_and_moves_nothing(orders, other: Session, third: Session, is_gone):
    job = dead(orders)
    if is_gone:
        services.delete(job.pk)
    second = services.begin_operation("redrive", selection={"queue": "letters"}, operator="olga")
    other.begin()
    assert len(other.run(services.redrive, "letters")) == 1

    waiting = third.start_blocked(services.advance_operation, second)
    other.commit()
    done = waiting.result(10)

    assert (done.state, done.moved) == ("done", 0)
    assert list(done.details["refused"].values()) == ["there is no such job"]
    assert Job.objects.in_queue("orders").count() == 1


def test_a_redrive_waits_for_a_worker_that_completes_the_original(orders, other: Session, third: Session):
    job = dead(orders)
    services.retry(job.pk)
    [claimed] = fetched(orders)
    later = sent(orders)
    other.begin()
    other.run(services.complete, claimed)

    waiting = third.start_blocked(services.redrive, "letters")
    other.commit()
    redriven = waiting.result(10)

    assert (redriven.removed, len(redriven)) == (1, 1)
    assert state_of(job) == "completed"
    assert set(Job.objects.all()) == {job, later}
    assert fetched(orders) == [later]


def test_a_worker_that_completes_the_original_waits_for_a_redrive(orders, other: Session, third: Session):
    job = dead(orders)
    services.retry(job.pk)
    [claimed] = fetched(orders)
    other.begin()
    assert other.run(services.redrive, "letters").removed == 1

    waiting = third.start(services.complete, claimed)
    third.until_done_or_waiting(waiting)
    other.commit()
    waiting.result(10)

    assert state_of(job) == "completed"
    assert letters() == 0


def test_a_redrive_waits_for_an_operator_who_skips_the_original_and_sends_a_new_job(
    orders, other: Session, third: Session
):
    job, later = dead(orders), sent(orders)
    other.begin()
    other.run(services.skip, job.pk, reason="later")

    waiting = third.start_blocked(services.redrive, "letters")
    other.commit()
    redriven = waiting.result(10)

    assert (redriven.sent, len(redriven)) == (1, 1)
    assert state_of(job) == "stopped"
    assert fetched(orders) == [later]
    services.complete(later.pk)
    [new] = fetched(orders)
    assert new.pk not in {job.pk, later.pk}


def test_an_operator_who_skips_the_original_waits_for_a_redrive(orders, other: Session, third: Session):
    job, later = dead(orders), sent(orders)
    other.begin()
    assert other.run(services.redrive, "letters").retried == 1

    waiting = third.start_blocked(services.skip, job.pk, reason="no longer needed")
    other.commit()
    waiting.result(10)

    assert state_of(job) == "stopped"
    assert letters() == 0
    assert fetched(orders) == [later]


def test_a_letter_that_a_worker_fetches_meanwhile_is_left(orders, other: Session, third: Session):
    job = dead(orders)
    operation = services.begin_operation("redrive", selection={"queue": "letters"}, operator="olga")
    other.begin()
    other.run(services.fetch, "letters")

    waiting = third.start_blocked(services.advance_operation, operation)
    other.commit()
    done = waiting.result(10)

    assert list(done.details["refused"].values()) == ["it is active"]
    assert (state_of(job), letters()) == ("failed", 1)


def test_a_redrive_whose_server_process_is_killed_loses_nothing(orders, session: Callable[[], Session]):
    """It is killed after it has retried one original, while it waits to send the other job."""
    there, gone = dead(orders, "there"), dead(orders, "gone")
    services.delete(gone.pk)
    operation = services.begin_operation("redrive", selection={"queue": "letters"}, operator="olga")
    holder, killed = session(), session()
    holder.begin()
    in_the_way = {"policy": orders.policy, "singleton_key": "gone"}
    holder.run(Job.objects.create, pk=uuid5(gone.pk, "redrive"), queue=orders, **in_the_way)
    waiting = killed.start_blocked(services.advance_operation, operation)
    scalar("SELECT pg_terminate_backend(%s)", killed.pid)
    with pytest.raises(OperationalError):
        waiting.result(10)
    holder.rollback()
    assert (letters(), state_of(there), Job.objects.in_queue("orders").count()) == (2, "failed", 1)

    done = services.advance_operation(operation)

    assert (done.state, done.moved, letters()) == ("done", 2, 0)
    assert (state_of(there), Job.objects.in_queue("orders").count()) == ("retry", 2)


def test_a_crash_between_two_batches_loses_nothing_and_repeats_nothing(orders, other: Session):
    jobs = [dead(orders, f"k{n}") for n in range(3)]
    services.delete([jobs[0].pk])
    operation = services.begin_operation("redrive", selection={"queue": "letters"}, operator="olga")
    other.begin()
    other.run(services.advance_operation, operation)
    other.rollback()
    assert letters() == 3

    services.advance_operation(operation)
    done = services.advance_operation(operation)

    assert (done.state, done.moved, letters()) == ("done", 3, 0)
    assert Job.objects.in_queue("orders").count() == 3
