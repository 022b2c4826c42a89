"""Each condition and each order of the statements of grouped reads, with a row that only that one leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.engine import sql
from django_jobqueue.models import Queue
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory

from .statements import ask, held, turned_round

pytestmark = pytest.mark.django_db


def grouped(queue: Queue, statement: str, **params: Any) -> list[tuple[Any, ...]]:
    return ask(queue, statement, **{"tags": [], "without": []} | params)


def in_front(queue: Queue, **params: Any) -> tuple[int, list[str]]:
    """The number of jobs that were read, and the groups whose heads were among them."""
    ((seen, _, heads),) = grouped(queue, sql.grouped_reads.GROUPS_IN_FRONT, **{"rows": 10, "groups": 10} | params)
    return seen, [key for key, *_ in json.loads(heads)]


def by_key(queue: Queue, **params: Any) -> list[str]:
    return [key for key, *_ in grouped(queue, sql.grouped_reads.GROUPS_BY_KEY, **{"groups": 10} | params)]


def of_groups(queue: Queue, *keys: str, depth: int = 10, **params: Any) -> list[tuple[str, Any, bool]]:
    found = grouped(queue, sql.grouped_reads.JOBS_OF_GROUPS, keys=list(keys), depth=depth, **params)
    return [(key, id, goes) for key, _, id, goes in found]


def without_group(queue: Queue, depth: int = 10, **params: Any) -> list[tuple[Any, bool]]:
    found = grouped(queue, sql.grouped_reads.JOBS_WITHOUT_GROUP, depth=depth, **params)
    return [(id, goes) for _, _, id, goes, *_ in found]


# ------------------------------------------------------------------------------------------------- groups in front


def test_only_the_first_jobs_are_looked_at(queue):
    JobFactory(queue=queue, group_key="A")
    JobFactory(queue=queue, group_key="B", priority=1)
    turned_round()

    assert in_front(queue, rows=1) == (1, ["B"])


def test_only_the_first_groups_are_returned(queue):
    JobFactory(queue=queue, group_key="A")
    JobFactory(queue=queue, group_key="B", priority=1)

    assert in_front(queue, groups=1) == (2, ["B"])


def test_groups_that_were_asked_for_before_are_left_out(queue):
    for key in "ABC":
        JobFactory(queue=queue, group_key=key)

    assert in_front(queue, without=["A", "C"])[1] == ["B"]
    assert by_key(queue, without=["A", "C"]) == ["B"]


def test_the_head_of_a_group_is_its_oldest_job_wherever_its_row_is(queue):
    old, young = (JobFactory(queue=queue, group_key="A", priority=priority) for priority in (0, 1))
    turned_round(old, young)

    assert in_front(queue, rows=1)[1] == []
    assert in_front(queue)[1] == ["A"]


# --------------------------------------------------------------------------------------------------- groups by key


def test_each_group_is_found_by_its_oldest_job_wherever_its_row_is(queue):
    jobs = [JobFactory(queue=queue, group_key=key, priority=priority) for priority in (2, 1) for key in "AB"]
    turned_round(*jobs)

    found = grouped(queue, sql.grouped_reads.GROUPS_BY_KEY, groups=10)

    assert found == [(job.group_key, 2, job.position) for job in jobs[:2]]


def test_jobs_that_have_ended_are_no_heads(queue):
    for key in "AB":
        JobFactory(queue=queue, group_key=key, state=JobState.COMPLETED)
        JobFactory(queue=queue, group_key=key)

    assert by_key(queue) == ["A", "B"]


def test_jobs_without_a_group_are_no_group_of_this_statement(queue):
    JobFactory(queue=queue)
    JobFactory(queue=queue, group_key="A")

    assert by_key(queue) == ["A"]


# -------------------------------------------------------------------------------------------------- jobs of groups


def test_jobs_of_groups_are_returned_in_order_and_as_deep_as_asked_wherever_their_rows_are(queue):
    jobs = [JobFactory(queue=queue, group_key=key) for _ in range(3) for key in "BA"]
    turned_round(*jobs)

    assert of_groups(queue, "B", "A", depth=2) == [
        ("A", jobs[1].pk, True),
        ("A", jobs[3].pk, True),
        ("B", jobs[0].pk, True),
        ("B", jobs[2].pk, True),
    ]


def test_a_job_of_a_group_goes_if_it_is_fetchable_and_has_the_tags(queue):
    good = JobFactory(queue=queue, group_key="A", tags=["x"])
    late = held(queue, group_key="A", tags=["x"])
    bare = JobFactory(queue=queue, group_key="A")

    assert of_groups(queue, "A", tags=["x"]) == [("A", good.pk, True), ("A", late.pk, False), ("A", bare.pk, False)]


# --------------------------------------------------------------------------------------------- jobs without a group


def test_a_job_without_a_group_goes_if_it_is_fetchable_and_has_the_tags(queue):
    good = JobFactory(queue=queue, tags=["x"])
    late = held(queue, tags=["x"])
    bare = JobFactory(queue=queue)

    assert without_group(queue, tags=["x"]) == [(good.pk, True), (late.pk, False), (bare.pk, False)]


def test_a_later_job_that_is_not_due_takes_no_place_from_a_fetchable_one(queue):
    good = JobFactory(queue=queue)
    held(queue, priority=9)

    assert without_group(queue, depth=1) == [(good.pk, True)]


def test_a_job_that_waits_for_a_retry_is_returned_once(queue):
    again = JobFactory(queue=queue, state=JobState.RETRY)
    fresh = JobFactory(queue=queue)

    assert without_group(queue, depth=2) == [(again.pk, True), (fresh.pk, True)]


def test_the_first_jobs_without_a_group_are_returned_wherever_their_rows_are(queue):
    fresh = [JobFactory(queue=queue) for _ in range(2)]
    turned_round(*fresh)

    assert without_group(queue, depth=1) == [(fresh[0].pk, True)]


def test_the_first_jobs_that_hold_up_the_others_are_returned_wherever_their_rows_are(queue):
    late = [held(queue) for _ in range(2)]
    turned_round(*late)

    assert without_group(queue, depth=1) == [(late[0].pk, False)]


@pytest.mark.parametrize("elsewhere", ("queue", "group"))
def test_jobs_without_a_group_wait_only_for_their_like(queue, elsewhere):
    if elsewhere == "queue":
        JobFactory(queue=QueueFactory(), state=JobState.ACTIVE)
    else:
        JobFactory(queue=queue, group_key="A", state=JobState.ACTIVE)
    job = JobFactory(queue=queue)

    assert services.fetch(queue.name, 2, grouping="fill") == [job]
