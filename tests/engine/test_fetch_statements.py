"""Each condition and each order of the statements of a fetch, with a row that only that one leaves out."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from django_jobqueue.engine import sql
from django_jobqueue.models import Job, Queue
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.states import Hold, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread, rewrite

from .statements import CLAIM, ask, held, place_of, turned_round

pytestmark = pytest.mark.django_db

KNOWN = {"policy": QueuePolicy.STANDARD, "partition": False}  # what the caller knows of the queue


@pytest.fixture
def other(db: None) -> Queue:
    return QueueFactory()


def lease_is_over(queue: Queue, statement: str) -> bool | None:
    ((*_, answer),) = ask(queue, statement)
    return answer  # type: ignore[no-any-return]


def any_is_due(queue: Queue) -> bool | None:
    ((answer, _),) = ask(queue, sql.fetch.LOOK_AT_TIMES)
    return answer  # type: ignore[no-any-return]


def leased(queue: Queue, seconds: float, **options: Any) -> Job:
    return JobFactory(queue=queue, **{"state": JobState.ACTIVE, "lease_until": ago(seconds=-seconds)} | options)


# ------------------------------------------------------------------------------------------------- what has ended

LOOKS = pytest.mark.parametrize("look", (sql.fetch.LOOK_BESIDE, sql.fetch.LOOK_AT_TIMES), ids=("beside", "at times"))


@LOOKS
def test_a_lease_is_over_if_the_first_is(queue, look):
    jobs = [leased(queue, seconds) for seconds in (-1, 60)]
    turned_round(*jobs)

    assert lease_is_over(queue, look)


@LOOKS
def test_only_a_lease_of_a_running_job_of_this_queue_counts(queue, other, look):
    leased(other, -1)
    leased(queue, -1, state=JobState.CANCELLING)
    JobFactory(queue=queue, state=JobState.ACTIVE)

    assert lease_is_over(queue, look) is None


def test_a_job_is_due_if_the_first_is(queue):
    jobs = [held(queue, start_after=ago(seconds=seconds)) for seconds in (1, -60)]
    turned_round(*jobs)

    assert any_is_due(queue)


def test_only_a_held_job_of_this_queue_can_be_due(queue, other):
    held(other, start_after=ago(seconds=1))
    JobFactory(queue=queue, start_after=ago(seconds=1))

    assert any_is_due(queue) is None


def test_only_due_jobs_of_this_queue_lose_their_hold(fifo_queue, other):
    due = held(fifo_queue, start_after=ago(seconds=1))
    kept = [
        held(other, start_after=ago(seconds=1)),
        held(fifo_queue, start_after=ago(seconds=-60)),
        JobFactory(queue=fifo_queue, hold=Hold.LANE, start_after=ago(seconds=1)),
    ]

    ask_to_release(fifo_queue, 10)

    assert reread(due).hold is None
    assert [reread(job).hold for job in kept] == [Hold.UNTIL, Hold.UNTIL, Hold.LANE]


def test_jobs_that_were_due_first_lose_their_hold_first(queue):
    jobs = [held(queue, start_after=ago(seconds=seconds)) for seconds in (2, 1)]
    turned_round(*jobs)

    ask_to_release(queue, 1)

    assert [reread(job).hold for job in jobs] == [None, Hold.UNTIL]


def ask_to_release(queue: Queue, most: int) -> None:
    ask(queue, f"{sql.fetch.RELEASE_DUE} RETURNING j.id", most=most)


# ---------------------------------------------------------------------------------------------------- which queue


def test_queues_go_by_the_job_that_a_fetch_would_claim_first(db):
    a, b, c, d = (QueueFactory(name=name) for name in "abcd")
    held(d, priority=9)
    JobFactory(queue=b)
    JobFactory(queue=c)
    JobFactory(queue=b, priority=1)
    turned_round()

    names = [name for (name,) in ask(a, sql.fetch.QUEUES_BY_AGE)]

    assert names[:4] == ["c", "b", "a", "d"]


# ---------------------------------------------------------------------------------------------------- candidates


def jobs_around(queue: Queue) -> dict[str, Job]:
    """Jobs above, before, behind and below a place in the order of the queue."""
    priorities = {"above": 5, "before": 3, "place": 3, "behind": 3, "below": 1, "above later": 5}
    return {name: JobFactory(queue=queue, singleton_key=name, priority=n) for name, n in priorities.items()}


def test_a_claim_beyond_a_place_takes_only_what_is_more_important_or_behind_it(queue):
    jobs = jobs_around(queue)

    place = {"priority": 3, "position": jobs["place"].position}
    claimed = ask(queue, sql.fetch.CLAIM_BEYOND, limit=10, **place, **KNOWN, **CLAIM)

    assert {id for *_, id in claimed} == {jobs[name].pk for name in ("above", "above later", "behind")}


@pytest.mark.parametrize(
    ("statement", "names"),
    (
        (sql.fetch.HEADS_ABOVE, ["above", "above later"]),
        (sql.fetch.HEADS_WITHIN, ["behind"]),
        (sql.fetch.HEADS_BELOW, ["behind", "below"]),
        (sql.fetch.HEADS, ["above", "above later", "before", "place", "behind", "below"]),
    ),
    ids=("above", "within", "below", "all"),
)
def test_candidates_are_those_of_this_part_of_the_order(queue, statement, names):
    place = jobs_around(queue)["place"].position

    found = ask(queue, statement, priority=3, position=place, without=[], limit=10, **KNOWN)

    assert [key for _, _, key, *_ in found] == names


def test_candidates_of_some_keys_are_left_out(queue):
    jobs_around(queue)

    found = ask(queue, sql.fetch.HEADS, without=["above", "place"], limit=10, **KNOWN)

    assert [key for _, _, key, *_ in found] == ["above later", "before", "behind", "below"]


@pytest.mark.parametrize("statement", (sql.fetch.HEADS, sql.fetch.CLAIM_FRONT), ids=("heads", "front"))
def test_the_first_candidates_of_the_queue_are_taken_wherever_their_rows_are(queue, other, statement):
    JobFactory(queue=other, priority=9)
    jobs = [JobFactory(queue=queue, priority=priority) for priority in (1, 0, 0)]
    turned_round(*jobs)

    found = ask(queue, statement, limit=2, without=[], **KNOWN, **CLAIM)

    ids = {value for row in found for value in row if isinstance(value, UUID)}
    assert ids == {jobs[0].pk, jobs[1].pk}


@pytest.mark.parametrize("changed", ({"policy": "short"}, {"partition": True}, {"paused_at": ago()}, {"name": "gone"}))
def test_nothing_is_claimed_from_a_queue_that_is_not_the_one_that_is_known(queue, other, changed):
    JobFactory(queue=queue)
    Queue.objects.filter(name=queue.name).update(**changed)

    assert ask(queue, sql.fetch.CLAIM_FRONT, limit=10, **KNOWN, **CLAIM) == []


def test_the_jobs_of_a_group_are_claimed_up_to_the_first_that_is_gone(queue):
    jobs = [JobFactory(queue=queue, group_key="A") for _ in range(3)]
    rewrite(jobs[1], state=JobState.ACTIVE)
    places = {"keys": ["A"] * 3, "places": [0, 1, 2], "tids": [place_of(job) for job in jobs]}

    claimed = ask(queue, sql.fetch.CLAIM_GROUPED, **places, **CLAIM)

    assert [id for *_, id in claimed] == [jobs[0].pk]
