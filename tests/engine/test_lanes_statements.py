"""Each condition and each order of the statements of lanes, with a row that only that one leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import rows
from django_jobqueue.models import Job, PendingRelease, Queue
from django_jobqueue.policies import DelayedHead, QueuePolicy
from django_jobqueue.states import Hold, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread, rewrite

from .statements import ask, held, place_of, turned_round

pytestmark = pytest.mark.django_db


@pytest.fixture
def other(db: None) -> Queue:
    return QueueFactory(policy=QueuePolicy.KEY_STRICT_FIFO)


def look(queue: Queue, *keys: str) -> dict[str, tuple[bool, int | None, bool]]:
    """By key: whether the lane is blocked, the number of its head, and whether a due job goes before that."""
    found = ask(queue, sql.lanes.LOOK_AT_LANES, lanes=list(keys))
    return {key: (blocked, head, overdue) for key, blocked, head, overdue in found}


def job(queue: Queue, key: str = "a", **options: Any) -> Job:
    return JobFactory(queue=queue, singleton_key=key, **options)


# --------------------------------------------------------------------------------------------------- the heads


def test_the_head_is_the_first_job_wherever_its_row_is(fifo_queue):
    jobs = [job(fifo_queue) for _ in range(2)]
    turned_round(*jobs)

    assert look(fifo_queue, "a") == {"a": (False, jobs[0].seq, False)}


def test_the_first_fetchable_job_goes_before_one_that_is_held_wherever_its_row_is(fifo_queue):
    free = [job(fifo_queue) for _ in range(2)]
    turned_round(*free, job(fifo_queue, hold=Hold.LANE))

    assert look(fifo_queue, "a") == {"a": (False, free[0].seq, False)}


def test_the_first_job_that_is_not_due_goes_before_others_where_it_blocks(fifo_queue):
    Queue.objects.filter(name=fifo_queue.name).update(delayed_head=DelayedHead.BLOCK)
    late = [held(fifo_queue, singleton_key="a", start_after=ago(hours=-1)) for _ in range(2)]
    turned_round(*late, job(fifo_queue, hold=Hold.LANE))

    assert look(fifo_queue, "a") == {"a": (False, late[0].seq, False)}


# ---------------------------------------------------------------------------------------------------- due jobs


def test_a_due_job_with_a_smaller_number_goes_first(fifo_queue):
    late = held(fifo_queue, singleton_key="b", start_after=ago(hours=-1))
    due = held(fifo_queue, singleton_key="a", start_after=ago(seconds=1))
    head = job(fifo_queue)
    turned_round(late, due, head)
    rewrite(due, note="lies behind the one that is not due")

    assert look(fifo_queue, "a") == {"a": (False, head.seq, True)}


def test_only_a_due_job_of_this_lane_in_front_of_its_head_goes_first(fifo_queue, other):
    due = {"start_after": ago(seconds=1)}
    held(other, singleton_key="queue", **due)
    rewrite(held(fifo_queue, singleton_key="policy", **due), policy=QueuePolicy.STANDARD)
    job(fifo_queue, "hold", hold=Hold.LANE, **due)
    held(fifo_queue, singleton_key="another", **due)
    held(fifo_queue, singleton_key="not due", start_after=ago(hours=-1))
    keys = ["queue", "policy", "hold", "key", "not due", "behind"]
    for key in keys:
        job(fifo_queue, key)
    held(fifo_queue, singleton_key="behind", **due)

    assert {key for key, (_, _, overdue) in look(fifo_queue, *keys).items() if overdue} == set()


# ------------------------------------------------------------------------------------------------ running jobs


def test_only_a_running_job_of_the_same_lane_and_policy_counts(singleton_queue):
    other = QueueFactory(policy=QueuePolicy.SINGLETON)
    job(singleton_queue, "a", state=JobState.ACTIVE)
    job(singleton_queue, "b", state=JobState.COMPLETED)
    job(other, "b", state=JobState.ACTIVE)
    rewrite(job(singleton_queue, "b", state=JobState.ACTIVE), policy=QueuePolicy.STANDARD)

    found = ask(singleton_queue, sql.lanes.LOOK_AT_RUNNING, policy=QueuePolicy.SINGLETON, lanes=["a", "b"])

    assert dict(found) == {"a": True, "b": False}


# ---------------------------------------------------------------------------------------- holding and releasing


def test_only_fetchable_jobs_of_the_lane_are_held(fifo_queue, other):
    fetchable = job(fifo_queue)
    others = [held(fifo_queue, singleton_key="a"), job(fifo_queue, "b"), job(other)]

    ask(fifo_queue, f"{sql.lanes.HOLD_LANES} RETURNING j.id", keys=["a"], most=10)

    assert reread(fetchable).hold == Hold.LANE
    assert [reread(one).hold for one in others] == [Hold.UNTIL, None, None]


def released(queue: Queue, *keys: str) -> dict[str, bool]:
    return dict(ask(queue, sql.lanes.RELEASE_LANES, keys=list(keys)))


def test_a_blocked_lane_is_not_released(fifo_queue):
    job(fifo_queue, state=JobState.ACTIVE)
    waiting = job(fifo_queue, hold=Hold.LANE)

    assert released(fifo_queue, "a") == {"a": False}
    assert reread(waiting).hold == Hold.LANE


@pytest.mark.parametrize("behind", (None, Hold.LANE, Hold.UNTIL), ids=("alone", "before held", "before not due"))
def test_a_fetchable_head_is_not_written(fifo_queue, behind):
    head = job(fifo_queue)
    if behind:
        job(fifo_queue, hold=behind)
    place = place_of(head)

    assert released(fifo_queue, "a") == {"a": False}
    assert place_of(head) == place


def test_a_lane_that_was_released_is_not_reported_as_locked(fifo_queue):
    waiting = job(fifo_queue, hold=Hold.LANE)

    assert released(fifo_queue, "a") == {"a": False}
    assert reread(waiting).hold is None


@pytest.mark.parametrize("name", ("fifo_queue", "singleton_queue"))
def test_the_first_held_job_is_released_wherever_its_row_is(request, name):
    queue: Queue = request.getfixturevalue(name)
    jobs = [job(queue, hold=Hold.LANE) for _ in range(2)]
    turned_round(*jobs)

    ask(queue, RELEASE[name], keys=["a"], policy=queue.policy)

    assert [reread(one).hold for one in jobs] == [None, Hold.LANE]


RELEASE = {"fifo_queue": sql.lanes.RELEASE_LANES, "singleton_queue": sql.lanes.RELEASE_RUNNING}


def test_only_a_job_of_the_same_lane_and_policy_is_released_or_prevents_that(singleton_queue):
    of_other_policy = rewrite(job(singleton_queue, hold=Hold.LANE, priority=9), policy=QueuePolicy.KEY_STRICT_FIFO)
    of_other_key = job(singleton_queue, "b", hold=Hold.LANE, priority=9)
    waiting = job(singleton_queue, hold=Hold.LANE)
    job(singleton_queue, "b", state=JobState.ACTIVE)
    rewrite(job(singleton_queue, state=JobState.ACTIVE), policy=QueuePolicy.STANDARD)

    ask(singleton_queue, sql.lanes.RELEASE_RUNNING, keys=["a"], policy=QueuePolicy.SINGLETON)

    assert [reread(one).hold for one in (of_other_policy, of_other_key, waiting)] == [Hold.LANE, Hold.LANE, None]


# --------------------------------------------------------------------------------------------- pending releases


def test_lanes_are_released_in_the_order_in_which_they_were_stored(db):
    pending = [PendingRelease.objects.create(queue="q", policy="singleton", singleton_key=key) for key in "ab"]
    turned_round()
    PendingRelease.objects.filter(pk=pending[0].pk).update(singleton_key="c")  # its row lies behind the other now
    ids = [one.pk for one in pending]

    assert [id for (id,) in rows("default", sql.lanes.PENDING_IDS, {"queue": None})] == ids
    assert [id for id, *_ in rows("default", sql.lanes.PENDING_LANES, {"ids": ids})] == ids
