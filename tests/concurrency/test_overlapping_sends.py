"""Sends that overlap: with each other, with fetches, and with jobs of the same id or slot."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from threading import Barrier
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import transaction

from django_jobqueue import services
from django_jobqueue.exceptions import DuplicateJob
from django_jobqueue.models import Job

from .race_lab import RACE_FACTOR
from .sessions import Session, scalar
from .steps import fetched, sent, state_of

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

SENDERS = 50


# ------------------------------------------------------------------------------------------ a lower seq, committed late


@pytest.fixture
def late(fifo_queue, other: Session) -> tuple[Job, Job]:
    """A job with a lower number that was committed when a later one of its key was running already."""
    other.begin()
    late = other.run(sent, fifo_queue)
    early = sent(fifo_queue)
    assert fetched(fifo_queue) == [early]
    other.commit()
    assert late.seq < early.seq
    return late, early


def test_a_send_committed_late_waits_for_what_runs_already(fifo_queue, late):  # R002 B28
    missed, running = late

    assert fetched(fifo_queue) == []

    services.complete(running.pk)
    assert fetched(fifo_queue) == [missed]


def test_a_retry_does_not_wait_for_a_lower_number_committed_late(fifo_queue, late):  # R003 B28
    missed, running = late
    services.fail(running.pk, "it failed")

    assert fetched(fifo_queue) == [running]

    assert state_of(missed) == "created"
    services.complete(running.pk)
    assert fetched(fifo_queue) == [missed]


def test_a_send_committed_late_goes_before_later_ones_that_wait(fifo_queue, other: Session):  # R085
    first = sent(fifo_queue)
    other.begin()
    late = other.run(sent, fifo_queue)
    later = sent(fifo_queue)
    assert fetched(fifo_queue) == [first]  # and holds back the later one
    other.commit()

    order = []
    for _ in range(2):
        [finished] = Job.objects.running()
        order += services.finish_many([(finished, None)], hand_over=True).next

    assert order == [late, later]


def test_a_send_that_is_rolled_back_leaves_nobody_waiting(fifo_queue, other: Session):  # I2
    other.begin()
    other.run(sent, fifo_queue)
    later = sent(fifo_queue)
    other.rollback()

    assert fetched(fifo_queue) == [later]


# --------------------------------------------------------------------------------------- a batch with a duplicate in it


@pytest.mark.parametrize("committed", (True, False))
def test_a_batch_whose_first_is_a_duplicate_runs_the_others_in_order(
    fifo_queue, other: Session, third: Session, committed
):  # B32 I2
    taken = uuid4()
    other.begin()
    other.run(sent, fifo_queue, "elsewhere", id=taken)
    items = [{"id": taken, "singleton_key": "a"}, {"singleton_key": "a"}, {"singleton_key": "a"}]

    sending = third.start_blocked(services.send_many, fifo_queue.name, items, on_duplicate="ignore")
    (other.commit if committed else other.rollback)()
    ids = sending.result(10)

    assert (ids[0] is None) == committed
    assert drained(fifo_queue, "a") == [id for id in ids if id is not None]
    assert services.check_lanes() == []


def test_a_batch_with_a_duplicate_sends_nothing_and_strands_nobody(fifo_queue):  # B15 B32
    taken = sent(fifo_queue, "a").pk

    with transaction.atomic():
        with pytest.raises(DuplicateJob):
            services.send_many(fifo_queue.name, [{"id": taken, "singleton_key": "a"}, {"singleton_key": "a"}])
        last = sent(fifo_queue, "a")

    assert drained(fifo_queue, "a") == [taken, last.pk]


def drained(queue: Any, key: str) -> list[UUID]:
    """The jobs of a key in the order in which they could be fetched."""
    order = []
    while jobs := [job for job in fetched(queue) if job.singleton_key == key]:
        assert len(jobs) == 1
        order.append(jobs[0].pk)
        services.complete(jobs[0])
    return order


# ------------------------------------------------------------------------------------------------- the same thing often


def test_many_fetchers_of_one_key_get_one_job(fifo_queue, race):  # R002 R011
    jobs = [sent(fifo_queue) for _ in range(20)]

    claims = race(8, lambda: fetched(fifo_queue))

    assert [job for claim in claims for job in claim] in ([], jobs[:1])  # none, if each was in another's way
    assert [job for claim in claims for job in claim] + fetched(fifo_queue) == jobs[:1]


def test_of_fifty_sends_of_one_id_one_is_stored(queue, race):  # G10 B30 I10 F55
    id = uuid4()

    outcomes = race(SENDERS, lambda: in_usable_transaction(lambda: services.send(queue.name, {"n": 1}, id=id)))

    assert Counter(outcomes) == {"sent": 1, "DuplicateJob": SENDERS - 1}
    assert Job.objects.count() == 1


@pytest.mark.parametrize("name", ("queue", "exclusive_queue", "short_queue", "stately_queue"))
def test_of_fifty_sends_of_one_slot_one_is_stored(request, name, race):  # R079 R082 G10 I10
    queue = request.getfixturevalue(name)

    outcomes = race(
        SENDERS, lambda: in_usable_transaction(lambda: services.send(queue.name, {"n": 1}, singleton_key="a"))
    )

    assert Counter(outcomes) == {"sent": 1, "None": SENDERS - 1}
    assert Job.objects.count() == 1


@pytest.mark.parametrize("on_duplicate", (None, "return"))
def test_of_fifty_batches_with_one_slot_one_is_stored(queue, race, on_duplicate):  # B32 G10
    items: list[services.Item] = [{"singleton_key": "a"}, {"singleton_key": "b"}]

    def send() -> Any:
        return services.send_many(queue.name, items, on_duplicate=on_duplicate)

    outcomes = race(SENDERS, lambda: in_usable_transaction(send))

    refused = "DuplicateJob" if on_duplicate is None else "sent"
    assert Counter(outcomes) == Counter(["sent", *[refused] * (SENDERS - 1)])
    assert sorted(Job.objects.values_list("singleton_key", flat=True)) == ["a", "b"]


def in_usable_transaction(send: Callable[[], Any]) -> str:
    """What a send came to, inside a transaction that afterwards still works and commits."""
    with transaction.atomic():
        try:
            outcome = "None" if send() is None else "sent"
        except DuplicateJob:
            outcome = "DuplicateJob"
        assert scalar("SELECT count(*) FROM jobqueue_queue") > 0
    return outcome


# ------------------------------------------------------------------------------------------- batches across each other


@pytest.mark.parametrize("on_duplicate", (None, "ignore", "return"))
@pytest.mark.parametrize("name", ("queue", "exclusive_queue", "short_queue", "stately_queue"))
def test_batches_that_wait_for_each_other_end_both(request, name, session, on_duplicate):  # G11
    queue = request.getfixturevalue(name)
    holder, first, second = session(), session(), session()
    holder.begin()
    holder.run(sent, queue, "m")  # both batches stop here, each with its first key locked
    sending = [
        sender.start_blocked(send_keys, queue, keys, on_duplicate) for sender, keys in ((first, "amb"), (second, "bma"))
    ]

    holder.rollback()
    outcomes = sorted(future.result(10) for future in sending)

    assert outcomes == (["DuplicateJob", "sent"] if on_duplicate is None else ["sent", "sent"])
    assert sorted(Job.objects.values_list("singleton_key", flat=True)) == ["a", "b", "m"]


def send_keys(queue: Any, keys: Iterable[str], on_duplicate: Any) -> str:
    scalar("SELECT set_config('deadlock_timeout', '20ms', false)")  # a deadlock shows sooner
    try:
        services.send_many(queue.name, [{"singleton_key": key} for key in keys], on_duplicate=on_duplicate)
    except DuplicateJob:
        return "DuplicateJob"
    return "sent"


@pytest.mark.parametrize("on_duplicate", (None, "ignore"))
def test_batches_in_random_orders_deadlock_for_no_caller(queue, race, on_duplicate):  # G11
    senders, rounds = 4, 5 * RACE_FACTOR
    start = Barrier(senders, timeout=30)

    def send_batches() -> list[str]:
        outcomes = []
        for number in range(rounds):
            keys = [f"{number}-{key}" for key in range(60)]
            start.wait()
            outcomes.append(send_keys(queue, random.sample(keys, len(keys)), on_duplicate))
        return outcomes

    outcomes = Counter(outcome for many in race(senders, send_batches) for outcome in many)

    assert Job.objects.count() == rounds * 60  # all or none, and each key once
    if on_duplicate is None:
        assert outcomes == {"sent": rounds, "DuplicateJob": rounds * (senders - 1)}
    else:
        assert outcomes == {"sent": rounds * senders}


def test_batches_with_reversed_ids_deadlock_for_no_caller(fifo_queue, race):  # G11
    start, rounds = Barrier(4, timeout=30), 5 * RACE_FACTOR
    batches = [[uuid4() for _ in range(60)] for _ in range(rounds)]

    def send_batches() -> None:
        scalar("SELECT set_config('deadlock_timeout', '20ms', false)")
        for batch in batches:
            items: list[services.Item] = [{"id": id, "singleton_key": "a"} for id in random.sample(batch, len(batch))]
            start.wait()
            services.send_many(fifo_queue.name, items, on_duplicate="ignore")

    race(4, send_batches)

    assert set(Job.objects.values_list("pk", flat=True)) == {id for batch in batches for id in batch}
