"""Verbs that change many lanes at once, against a fetch that judges one of them: no lane is left stranded."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.engine import lanes
from django_jobqueue.models import Job
from django_jobqueue.policies import DelayedHead
from django_jobqueue.states import JobState

from .sessions import Session
from .steps import dead, fetched, running, sent, state_of

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

TOO_MANY = lanes.MOST_KEYS + 20


def test_a_purge_strands_nobody_whom_a_fetch_holds_back_meanwhile(fifo_queue, other: Session, third: Session):  # B26
    dead(fifo_queue)
    other.begin()
    other.run(services.purge, fifo_queue.name, JobState.FAILED)
    second = sent(fifo_queue)
    third.begin()
    assert third.run(fetched, fifo_queue) == []  # because the dead one is still there

    purging = other.start_commit()
    third.commit()
    purging.result(10)

    assert services.check_lanes() == []
    assert fetched(fifo_queue) == [second]


def test_a_changed_delayed_head_strands_nobody_whom_a_fetch_holds_back(fifo_queue, other: Session, third: Session):
    services.update_queue(fifo_queue.name, delayed_head=DelayedHead.BLOCK)  # B18
    sent(fifo_queue, delay=3600)
    second = sent(fifo_queue)
    third.begin()
    assert third.run(fetched, fifo_queue) == []  # because it waits for the first

    changing = other.start(services.update_queue, fifo_queue.name, delayed_head=DelayedHead.PASS)
    other.until_done_or_waiting(changing)
    third.commit()
    changing.result(10)

    assert services.check_lanes() == []
    assert fetched(fifo_queue) == [second]


@pytest.mark.parametrize("isolation", ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
def test_a_cancel_of_more_keys_than_can_be_locked_strands_nobody(
    fifo_queue, other: Session, third: Session, isolation
):  # I2
    firsts = [sent(fifo_queue, f"key-{number}") for number in range(TOO_MANY)]
    seconds = [sent(fifo_queue, f"key-{number}") for number in range(TOO_MANY)]
    other.begin(isolation)
    assert len(other.run(services.cancel, firsts).cancelled) == TOO_MANY
    third.begin()
    assert third.run(fetched, fifo_queue, 50) == []  # holds back the second of some keys

    cancelling = other.start_commit()
    third.commit()
    cancelling.result(10)

    assert services.check_lanes() == []
    assert len(drained(fifo_queue)) == len(seconds)


def drained(queue: Any) -> list[Job]:
    jobs = []
    while some := fetched(queue, 100):
        jobs += some
    return jobs


@pytest.mark.parametrize("isolation", ("REPEATABLE READ", "SERIALIZABLE"))
def test_strict_callers_of_every_releasing_verb_strand_nobody(fifo_queue, other: Session, third: Session, isolation):
    verbs = {
        "complete": lambda job: services.complete(job),
        "stop": lambda job: services.stop(job),
        "cancel": lambda job: services.cancel([job], force=True),
        "unknown": lambda job: services.mark_unknown_stopped(job),
    }
    jobs = running(fifo_queue, *verbs)
    seconds = [sent(fifo_queue, key) for key in verbs]
    for job in jobs:
        other.begin(isolation)
        other.run(verbs[job.singleton_key], job)
        third.begin()
        assert third.run(fetched, fifo_queue) == []  # it judges the lane by what was committed

        ending = other.start_commit()
        third.commit()
        ending.result(10)

        assert services.check_lanes() == [], job.singleton_key
        [second] = fetched(fifo_queue)
        assert second in seconds
        assert state_of(job) in {JobState.COMPLETED, JobState.STOPPED, JobState.UNKNOWN_STOPPED}


def test_whoever_is_about_to_be_released_is_not_overtaken(fifo_queue, other: Session, third: Session):  # R085 I2
    [first] = running(fifo_queue, "a")
    second = sent(fifo_queue)
    third.begin()
    assert third.run(fetched, fifo_queue) == []  # holds back the second, and keeps the key
    other.begin("REPEATABLE READ")
    other.run(services.complete, first)
    completing = other.start_commit()  # committed; the release of the lane waits for the key
    third_job = sent(fifo_queue)

    assert third.run(fetched, fifo_queue) == []

    assert state_of(third_job) == JobState.CREATED
    third.commit()
    completing.result(10)
    assert fetched(fifo_queue) == [second]
