"""A key that is locked or blocked delays no other key and no batch.

What others do must be done while the key is still held; the deadline is only there so that a failure ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import override_settings

from django_jobqueue import services
from django_jobqueue.engine import lanes
from django_jobqueue.engine.refused_keys import refusals_of
from django_jobqueue.engine.transactions import text_array
from django_jobqueue.models import Job, Worker
from django_jobqueue.states import JobState
from tests.past import ago, rewrite

from .sessions import Session, scalar, until
from .steps import dead, fetched, lock_row, running, sent, state_of

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def short_patience() -> Iterator[None]:
    with override_settings(JOBQUEUE={"LOCK_TIMEOUT_MS": 50}):
        yield


def in_open_transaction(other: Session, verb: Any, *args: Any, **kwargs: Any) -> None:
    """After this the keys of these jobs are locked until the other session ends its transaction."""
    other.begin()
    other.run(verb, *args, **kwargs)


# ------------------------------------------------------------------------------------------------------------ fetching


def test_a_locked_key_does_not_delay_a_fetch_of_others(laned_queue, other: Session, third: Session):  # R028 I3
    [held] = running(laned_queue, "a")
    sent(laned_queue, "a")
    in_open_transaction(other, services.complete, held)
    free = [sent(laned_queue, key) for key in "bcd"]

    assert third.run(fetched, laned_queue) == free


@pytest.mark.parametrize("limit", (1, 10))
@pytest.mark.parametrize("tags", ([], ["red"]))
def test_a_locked_key_with_many_waiting_in_front_does_not_delay_others(
    laned_queue, other: Session, third: Session, tags, limit
):  # R028 I3 R138
    [held] = running(laned_queue, "a")
    in_open_transaction(other, services.complete, held)
    for _ in range(400):
        sent(laned_queue, "a", tags=tags)
    free = sent(laned_queue, "b", tags=tags)

    assert third.run(fetched, laned_queue, limit, tags=tags) == [free]


def test_a_key_that_stays_locked_is_not_tried_by_every_fetch(laned_queue, other: Session):
    """Each try would read and lock its jobs again, and a fetch that finds nothing would try three times."""
    [held] = running(laned_queue, "a")
    in_open_transaction(other, services.complete, held)
    waiting = sent(laned_queue, "a")
    until(lambda: fetched(laned_queue) == [] and "a" in refusals_of("default", laned_queue.name).passed_over())
    free = sent(laned_queue, "b")
    tries = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if isinstance(params, dict) and {"keys", "lanes"} <= params.keys():  # TRY_KEYS and the look at the lanes
            tries.append(params["keys"])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        refusals_of("default", laned_queue.name)._keys["a"].next_try += 60
        assert fetched(laned_queue) == [free]
    assert tries == [text_array(["b"])]

    other.rollback()
    services.complete(held)
    assert fetched(laned_queue) == [waiting]  # nothing else is there, so the key is tried again at once
    assert not refusals_of("default", laned_queue.name).passed_over()


def test_a_blocked_key_with_many_waiting_in_front_does_not_delay_others(fifo_queue, third: Session):  # R028 R088 I3
    dead(fifo_queue)
    for _ in range(400):
        sent(fifo_queue)
    free = sent(fifo_queue, "b")

    assert third.run(fetched, fifo_queue, 1) == [free]


def test_more_locked_keys_than_one_fetch_may_lock_do_not_delay_others(laned_queue, other: Session, third: Session):
    keys = [f"key-{number}" for number in range(lanes.MOST_KEYS)]  # R028 I3
    firsts = [sent(laned_queue, key) for key in keys]
    in_open_transaction(other, services.cancel, firsts)
    services.send_many(laned_queue.name, [{"singleton_key": key} for key in keys])
    free = sent(laned_queue, "b")

    assert third.run(fetched, laned_queue, 1) == [free]


def test_more_blocked_keys_than_one_fetch_may_lock_do_not_delay_others(fifo_queue, third: Session):  # R028 R088 I3
    keys = [f"key-{number}" for number in range(lanes.MOST_KEYS + 50)]
    services.send_many(fifo_queue.name, [{"singleton_key": key, "retry_limit": 0} for key in keys])
    while jobs := fetched(fifo_queue, 200):
        services.finish_many((), [(job, "it failed") for job in jobs])
    services.send_many(fifo_queue.name, [{"singleton_key": key} for key in keys])
    free = sent(fifo_queue, "b")

    assert third.run(fetched, fifo_queue, 1) == [free]


@pytest.mark.parametrize("tags", ([], ["red"]))
def test_a_locked_row_does_not_delay_a_fetch_of_others(laned_queue, other: Session, third: Session, tags):  # R028 R138
    held = sent(laned_queue, "a", tags=tags)
    in_open_transaction(other, lock_row, held.pk)
    free = sent(laned_queue, "b", tags=tags)

    assert third.run(fetched, laned_queue, tags=tags) == [free]


def test_a_lease_that_ran_out_on_a_locked_key_does_not_delay_others(laned_queue, other: Session, third: Session):  # B33
    [held] = running(laned_queue, "a", lease=60)
    rewrite(held, lease_until=ago(seconds=1))
    in_open_transaction(other, services.complete, held)
    free = sent(laned_queue, "b")

    assert third.run(fetched, laned_queue) == [free]

    other.commit()
    assert state_of(held) == JobState.COMPLETED


def test_a_delay_that_ended_on_a_locked_key_does_not_delay_others(fifo_queue, other: Session, third: Session):  # B18
    [held] = running(fifo_queue, "a")
    delayed = sent(fifo_queue, "a", delay=60)
    rewrite(delayed, start_after=ago(seconds=1))
    in_open_transaction(other, services.complete, held)
    free = sent(fifo_queue, "b")

    assert third.run(fetched, fifo_queue) == [free]

    other.commit()
    assert fetched(fifo_queue) == [delayed]


# ----------------------------------------------------------------------------------------------------------- finishing


def test_a_batch_finishes_all_but_the_locked_key_and_lists_that(laned_queue, other: Session, third: Session):  # B27
    held, *others = running(laned_queue, "a", "b", "c")
    in_open_transaction(other, services.complete, held)

    finished = third.run(services.finish_many, [(held, None), *((job, None) for job in others)])

    assert sorted(finished.completed) == sorted(job.pk for job in others)
    assert (finished.busy, finished.lost) == ([held.pk], [])
    assert [state_of(job) for job in others] == [JobState.COMPLETED] * 2
    other.rollback()
    again = third.run(services.finish_many, [(held, {"n": 1})])
    assert (again.completed, state_of(held)) == ([held.pk], JobState.COMPLETED)


def test_a_batch_finishes_all_but_the_locked_row_and_lists_that(laned_queue, other: Session, third: Session):  # B27
    held, *others = running(laned_queue, "a", "b", "c")
    in_open_transaction(other, lock_row, held.pk)

    finished = third.run(services.finish_many, [(held, None), *((job, None) for job in others)])

    assert sorted(finished.completed) == sorted(job.pk for job in others)
    assert finished.busy == [held.pk]
    other.rollback()
    assert third.run(services.finish_many, [(held, None)]).completed == [held.pk]


def test_a_batch_without_keys_finishes_all_but_the_locked_row_and_lists_that(queue, other: Session, third: Session):
    held, *others = running(queue, "", "", "")  # B27
    in_open_transaction(other, lock_row, held.pk)

    finished = third.run(services.finish_many, [(job, None) for job in (held, *others)])

    assert finished.completed == [job.pk for job in others]
    assert (finished.busy, finished.lost) == ([held.pk], [])
    other.rollback()
    assert third.run(services.finish_many, [(held, None)]).completed == [held.pk]


def test_a_batch_hands_over_all_lanes_but_the_locked_one(fifo_queue, other: Session, third: Session):  # R014
    held, *others = running(fifo_queue, "a", "b", "c")
    following = [sent(fifo_queue, key) for key in "abc"]
    in_open_transaction(other, services.complete, held)

    finished = third.run(services.finish_many, [(job, None) for job in (held, *others)], hand_over=True)

    assert sorted(job.singleton_key for job in finished.next) == ["b", "c"]
    assert finished.busy == [held.pk]
    other.commit()
    assert fetched(fifo_queue) == [following[0]]


@pytest.mark.parametrize("hand_over", (False, True))
def test_a_batch_does_not_wait_for_a_locked_row_that_is_next(fifo_queue, other: Session, third: Session, hand_over):
    held, *others = running(fifo_queue, "a", "b", "c")
    [next_of_held, _] = services.send_many(fifo_queue.name, [{"singleton_key": "a"}] * 2)
    for _ in range(2):
        fetched(fifo_queue)  # puts the jobs behind the first on hold
    in_open_transaction(other, lock_row, next_of_held)

    finished = third.run(services.finish_many, [(job, None) for job in (held, *others)], hand_over=hand_over)

    assert set(finished.completed) == {job.pk for job in (held, *others)}
    other.rollback()
    assert services.release_pending() == 1
    assert [job.pk for job in fetched(fifo_queue)] == [next_of_held]


def test_a_batch_records_failures_of_all_but_the_locked_key(laned_queue, other: Session, third: Session):  # R015
    held, *others = running(laned_queue, "a", "b", "c")
    in_open_transaction(other, services.complete, held)

    finished = third.run(services.finish_many, (), [(job, "it failed") for job in (held, *others)])

    assert [failure.id for failure in finished.failed] == [job.pk for job in others]
    assert finished.busy == [held.pk]
    assert [state_of(job) for job in others] == [JobState.RETRY] * 2
    other.rollback()
    assert [failure.id for failure in services.finish_many((), [(held, "it failed")]).failed] == [held.pk]


@pytest.mark.parametrize("isolation", ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
def test_a_busy_key_leaves_the_callers_transaction_usable(fifo_queue, other: Session, third: Session, isolation):
    held, free = running(fifo_queue, "a", "b")  # I10
    in_open_transaction(other, lock_row, held.pk)
    third.begin(isolation)

    finished = third.run(services.finish_many, [(held, None), (free, None)])

    assert (finished.completed, finished.busy) == ([free.pk], [held.pk])
    assert third.run(Job.objects.filter(state=JobState.COMPLETED).count) == 1
    third.commit()
    assert state_of(free) == JobState.COMPLETED


def test_a_batch_leaves_the_callers_lock_timeout_alone(fifo_queue, other: Session, third: Session):
    [held] = running(fifo_queue, "a")
    lost = services.fetch(fifo_queue.name)
    assert lost == []
    third.begin()
    third.run(scalar, "SELECT set_config('lock_timeout', '7s', true)")
    held.attempt += 1  # a claim that is not valid: the side path

    assert third.run(services.finish_many, [(held, None)]).lost == [held.pk]

    assert third.run(scalar, "SELECT current_setting('lock_timeout')") == "7s"


# ------------------------------------------------------------------------------------------------------- recovering


def test_a_locked_key_does_not_delay_the_recovery_of_others(laned_queue, other: Session, third: Session):  # B11
    gone = uuid4()
    held, *others = running(laned_queue, "a", "b", "c", incarnation=gone)
    in_open_transaction(other, services.complete, held)

    recovered = third.run(services.recover_lost, [gone])

    assert recovered == {laned_queue.name: 2}
    assert [state_of(job) for job in others] == [JobState.UNKNOWN_RETRY] * 2


def test_a_locked_key_does_not_delay_the_expiry_of_others(laned_queue, other: Session, third: Session):  # B10
    held, *others = running(laned_queue, "a", "b", "c")
    Job.objects.update(expire_at=ago(hours=1))
    in_open_transaction(other, services.complete, held)

    assert third.run(services.expire) == {laned_queue.name: 2}
    assert [state_of(job) for job in others] == [JobState.RETRY] * 2


@pytest.mark.parametrize("by", ("key", "row"))
def test_what_recovery_passed_by_is_recovered_later(fifo_queue, other: Session, third: Session, by):  # B11
    gone = Worker.objects.create(name="gone").pk
    [held] = running(fifo_queue, "a", incarnation=gone)
    in_open_transaction(other, *((services.complete, held) if by == "key" else (lock_row, held.pk)))
    third.run(services.recover_lost, [gone])
    assert state_of(held) == JobState.ACTIVE

    other.rollback()
    services.recover_lost()

    assert state_of(held) == JobState.UNKNOWN_RETRY
