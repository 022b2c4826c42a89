"""Each condition and each order of the statements of maintenance, with a row that only that one leaves out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.utils import timezone

from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import rows
from django_jobqueue.models import Job, PendingRelease, Queue, SentRow
from django_jobqueue.policies import DelayedHead, QueuePolicy
from django_jobqueue.states import Hold, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, rewrite

from .statements import ask, held, turned_round

pytestmark = pytest.mark.django_db

LONG_AGO = {"created_at": ago(hours=1), "start_after": ago(hours=1), "retention_seconds": 60}


def left() -> set[UUID]:
    return set(Job.objects.values_list("pk", flat=True))


# ----------------------------------------------------------------------------------------------- which queues


def test_queues_with_such_rows_are_found_once_and_in_order_wherever_their_rows_are(db):
    queues = [QueueFactory(name=name) for name in "abcd"]
    jobs = [JobFactory(queue=queue, state=JobState.ACTIVE) for queue in (*queues[:2], *queues[:2])]
    turned_round(*jobs, JobFactory(queue=queues[2]), JobFactory(queue=queues[3], state=JobState.ACTIVE))

    found = rows("default", sql.maintain.QUEUES_WITH.format(which=sql.parts.IS_RUNNING))

    assert [name for (name,) in found] == ["a", "b", "d"]


# ------------------------------------------------------------------------------------------------------ deleting


def delete_old(queue: Queue, since: str = "-infinity", most: int = 10) -> None:
    ask(queue, sql.maintain.DELETE_OLD, since=since, most=most)


def test_only_ended_jobs_that_were_kept_long_enough_are_deleted(queue):
    JobFactory(queue=queue, state=JobState.COMPLETED, delete_at=ago(seconds=1))
    kept = [
        JobFactory(queue=queue, state=JobState.COMPLETED, delete_at=ago(seconds=-60)),
        JobFactory(queue=queue, state=JobState.ACTIVE, delete_at=ago(seconds=1)),
        JobFactory(queue=QueueFactory(), state=JobState.COMPLETED, delete_at=ago(seconds=1)),
    ]

    delete_old(queue)

    assert left() == {job.pk for job in kept}


def test_a_batch_of_deletions_begins_where_the_one_before_ended(queue):
    begin = timezone.now() - timedelta(minutes=1)
    before = JobFactory(queue=queue, state=JobState.COMPLETED, delete_at=begin - timedelta(seconds=1))
    JobFactory(queue=queue, state=JobState.COMPLETED, delete_at=begin)

    delete_old(queue, since=begin.isoformat())

    assert left() == {before.pk}


def test_jobs_that_were_to_be_deleted_first_are_deleted_first_wherever_their_rows_are(queue):
    jobs = [JobFactory(queue=queue, state=JobState.COMPLETED, delete_at=ago(seconds=seconds)) for seconds in (2, 1)]
    turned_round(*jobs)

    delete_old(queue, most=1)

    assert left() == {jobs[1].pk}


def test_an_archived_job_is_found_by_its_id_and_its_queue(queue):
    ended = timezone.now()
    archived, *others = [JobFactory(queue=queue, state=JobState.COMPLETED, finalized_at=ended) for _ in range(2)]
    others.append(JobFactory(queue=QueueFactory(), state=JobState.COMPLETED, finalized_at=ended))

    for ids in ([archived.pk], [others[1].pk]):
        ask(queue, sql.maintain.DELETE_ARCHIVED, ids=ids, ended=[ended])

    assert left() == {job.pk for job in others}


def test_rows_of_files_that_were_seen_first_are_forgotten_first_wherever_they_are(db):
    first, second = (SentRow.objects.create(id=uuid4(), seen_at=ago(days=days)) for days in (9, 8))
    SentRow.objects.filter(pk=first.pk).update(seen_at=ago(days=9))  # lies behind the other now
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute(sql.maintain.FORGET_SENT_ROWS, [1, 1])

    assert [row.pk for row in SentRow.objects.all()] == [second.pk]


# -------------------------------------------------------------------------------------- jobs that waited too long


def old_among_fetchable(queue: Queue, place: Job, most: int = 10) -> tuple[int, Any, set[UUID]]:
    params = {"priority": place.priority, "position": place.position, "most": most}
    ((number, last, ids),) = ask(queue, sql.maintain.OLD_AMONG_FETCHABLE, **params)
    return number, last, set(ids)


def test_old_jobs_are_looked_for_behind_a_place_and_below_it(queue):
    _, _, place, behind, below = (JobFactory(queue=queue, priority=n, **LONG_AGO) for n in (5, 3, 3, 3, 1))
    JobFactory(queue=QueueFactory(), priority=1, **LONG_AGO)
    held(queue, priority=1, **LONG_AGO)

    assert old_among_fetchable(queue, place) == (2, [1, below.position], {behind.pk, below.pk})


def test_the_first_jobs_are_looked_at_wherever_their_rows_are_and_the_last_of_them_is_told(queue):
    place, *behind, below = (JobFactory(queue=queue, priority=n, **LONG_AGO) for n in (3, 3, 3, 3, 1))
    turned_round(place, *behind, below)

    assert old_among_fetchable(queue, place, most=1) == (1, [3, behind[0].position], {behind[0].pk})
    assert old_among_fetchable(queue, place)[:2] == (4, [1, below.position])


def test_the_place_of_the_last_job_that_was_seen_is_that_of_the_lowest_priority_and_the_highest_position(queue):
    place, _, last = (JobFactory(queue=queue, **LONG_AGO) for _ in range(3))

    assert old_among_fetchable(queue, place)[:2] == (2, [0, last.position])


def old_among_overdue(queue: Queue, most: int = 10) -> list[UUID]:
    return [id for (id,) in ask(queue, sql.maintain.OLD_AMONG_OVERDUE, most=most)]


def test_only_jobs_that_wait_for_their_time_and_were_kept_long_enough_are_old(queue):
    old = held(queue, **LONG_AGO)
    held(QueueFactory(), **LONG_AGO)
    held(queue, **LONG_AGO | {"retention_seconds": 9999})
    JobFactory(queue=queue, **LONG_AGO)

    assert old_among_overdue(queue) == [old.pk]


def test_jobs_that_were_due_first_are_looked_at_first_wherever_their_rows_are(queue):
    jobs = [held(queue, **LONG_AGO | {"start_after": ago(minutes=minutes)}) for minutes in (40, 30)]
    turned_round(*jobs)

    assert old_among_overdue(queue, most=1) == [jobs[0].pk]


# ------------------------------------------------------------------------------------------------ stranded lanes


def stranded(queue: Queue, after: str | None = None, most: int = 10) -> tuple[int, str | None, list[str]]:
    """How many lanes were looked at, the last of them, and those that are stranded."""
    ordered = queue.policy == QueuePolicy.KEY_STRICT_FIFO
    statement = sql.maintain.STRANDED_IN_ORDER if ordered else sql.maintain.STRANDED_OF_ONE
    statement = statement.format(policy=queue.policy, beyond=">=" if after is None else ">")
    ((number, last, keys),) = ask(queue, statement, after=after or "", most=most)
    return number, last, sorted(keys)


def in_lane(queue: Queue, key: str, **options: Any) -> Job:
    return JobFactory(queue=queue, singleton_key=key, hold=Hold.LANE, **options)


@pytest.fixture(params=("fifo_queue", "singleton_queue"))
def laned(request: pytest.FixtureRequest) -> Queue:
    queue: Queue = request.getfixturevalue(request.param)
    return queue


def test_each_lane_of_a_queue_is_looked_at_once_and_in_order_wherever_its_rows_are(laned):
    jobs = [in_lane(laned, key) for key in "abcabc"]
    turned_round(*jobs)

    assert stranded(laned) == (3, "c", ["a", "b", "c"])
    assert stranded(laned, after="a") == (2, "c", ["b", "c"])
    assert stranded(laned, most=2) == (2, "b", ["a", "b"])


def test_only_lanes_of_this_queue_are_looked_at(laned):
    other = QueueFactory(policy=laned.policy)
    for key in "abc":
        in_lane(laned if key == "b" else other, key)
        JobFactory(queue=laned, singleton_key=f"{key} ended", state=JobState.COMPLETED)
    if laned.policy == QueuePolicy.SINGLETON:
        JobFactory(queue=laned, singleton_key="bb")

    assert stranded(laned) == (1, "b", ["b"])


def test_a_lane_whose_release_is_pending_is_not_stranded(laned):
    for key in "ab":
        in_lane(laned, key)
    for queue, key in ((laned.name, "a"), ("another", "b"), (laned.name, "c")):
        PendingRelease.objects.create(queue=queue, policy=laned.policy, singleton_key=key)

    assert stranded(laned) == (2, "b", ["b"])


def test_a_job_behind_one_that_is_not_due_is_not_stranded_where_that_blocks(fifo_queue):
    Queue.objects.filter(name=fifo_queue.name).update(delayed_head=DelayedHead.BLOCK)
    held(fifo_queue, singleton_key="a")
    in_lane(fifo_queue, "a")
    in_lane(fifo_queue, "b")
    held(fifo_queue, singleton_key="b")

    assert stranded(fifo_queue) == (2, "b", ["b"])


def test_only_a_running_or_fetchable_job_of_the_same_lane_shows_that_it_is_not_stranded(singleton_queue):
    other = QueueFactory(policy=QueuePolicy.SINGLETON)
    for key in "abc":
        in_lane(singleton_queue, key)
    JobFactory(queue=singleton_queue, singleton_key="a", state=JobState.ACTIVE)
    JobFactory(queue=singleton_queue, singleton_key="b")
    JobFactory(queue=singleton_queue, singleton_key="c", state=JobState.COMPLETED)
    JobFactory(queue=other, singleton_key="c", state=JobState.ACTIVE)
    JobFactory(queue=other, singleton_key="c")
    rewrite(JobFactory(queue=singleton_queue, singleton_key="c", state=JobState.ACTIVE), policy=QueuePolicy.STANDARD)

    assert stranded(singleton_queue) == (3, "c", ["c"])


def test_lanes_beside_very_many_fetchable_jobs_are_not_judged(singleton_queue):
    in_lane(singleton_queue, "a")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, policy, singleton_key) SELECT gen_random_uuid(), %s, %s, number "
            "FROM generate_series(1, 50001) number",
            [singleton_queue.name, singleton_queue.policy],
        )

    assert stranded(singleton_queue) == (1, "a", [])
