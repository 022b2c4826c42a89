"""A fetch outside a transaction: one round trip, and what it knows of its queue is checked beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from django_jobqueue import services
from django_jobqueue.exceptions import QueueNotFound
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.past import ago, reread, rewrite

from .lives import sent

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def round_trips() -> Iterator[list[str]]:
    seen: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield seen


def locker_of(job: Job) -> str:
    """The transaction that locked the row last."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmax::text FROM jobqueue_job WHERE id = %s", [job.pk])
        return str(cursor.fetchone()[0])


def test_a_queue_that_is_known_is_fetched_from_in_one_round_trip(queue):
    jobs = [sent(queue) for _ in range(3)]
    services.fetch(queue.name)

    with round_trips() as seen:
        assert services.fetch(queue.name, 2) == jobs[1:]

    assert len(seen) == 1


def test_a_batch_is_completed_in_one_round_trip(queue):
    for _ in range(3):
        sent(queue)
    jobs = services.fetch(queue.name, 3)

    with round_trips() as seen:
        finished = services.finish_many([(job, {"n": 1}) for job in jobs])

    assert len(seen) == 1
    assert finished.completed == [job.pk for job in jobs]
    assert [reread(job).output for job in jobs] == [{"n": 1}] * 3


def test_a_batch_is_completed_wherever_its_rows_are(queue):
    """Found where the claims put them, or, when something was written since, by their ids."""
    for _ in range(4):
        sent(queue)
    jobs = services.fetch(queue.name, 4)
    for moved in jobs[:2]:
        services.touch(moved)
    jobs[3].ctid = jobs[2].ctid  # a place where another job lies

    finished = services.finish_many([(job, None) for job in jobs])

    assert finished.completed == [job.pk for job in jobs]
    assert {reread(job).state for job in jobs} == {JobState.COMPLETED}


def test_a_batch_is_completed_with_a_job_whose_cancellation_was_asked_for(queue):
    for _ in range(3):
        sent(queue)
    jobs = services.fetch(queue.name, 3)
    services.cancel(jobs[1])

    finished = services.finish_many([(job, None) for job in jobs])

    assert finished.completed == [job.pk for job in jobs]
    assert {reread(job).state for job in jobs} == {JobState.COMPLETED}


def test_an_old_claim_completes_nothing_wherever_its_row_is(queue):  # I7
    sent(queue)
    (old,) = services.fetch(queue.name)
    services.give_back(old, "not now")
    (new,) = services.fetch(queue.name)
    old.ctid = new.ctid

    assert services.finish_many([(old, None)]).lost == [old.pk]
    assert reread(new).state == JobState.ACTIVE


def test_a_row_that_has_moved_to_the_place_of_another_of_the_same_fetch_is_not_taken_for_it(queue):  # C3.7
    for _ in range(2):
        sent(queue)
    first, second = services.fetch(queue.name, 2)
    first.ctid = second.ctid  # PostgreSQL reuses the place of a row; the claims of one fetch share their number

    services.finish_many([(first, "mine")])

    assert (reread(first).state, reread(first).output) == (JobState.COMPLETED, "mine")
    assert reread(second).state == JobState.ACTIVE


def test_a_job_that_has_failed_is_not_completed_by_its_last_claim_wherever_its_row_is(queue):
    sent(queue)
    (job,) = services.fetch(queue.name)
    services.fail(job.pk, "lost patience", for_good=True)
    with connection.cursor() as cursor:
        job.ctid = cursor.execute("SELECT ctid::text FROM jobqueue_job WHERE id = %s", [job.pk]).fetchone()[0]

    assert services.finish_many([(job, "late")]).lost == [job.pk]
    assert (reread(job).state, reread(job).output) == (JobState.FAILED, None)


def test_what_is_due_goes_by_its_priority_also_when_its_hold_is_not_lifted_yet(queue):
    services.fetch(queue.name)
    plain, due = sent(queue), sent(queue, delay=60, priority=5)
    rewrite(due, start_after=ago(seconds=1))

    assert services.fetch(queue.name, 2) == [due, plain]


def test_a_lease_that_ran_out_is_ended_by_the_next_fetch(queue):  # R064 B33
    job = sent(queue)
    (claim,) = services.fetch(queue.name, lease=60)
    rewrite(job, lease_until=ago(seconds=1))

    (again,) = services.fetch(queue.name, 5)

    assert (again, again.attempt, again.retry_count) == (claim, 2, 0)


def test_a_bookmark_finds_what_is_ahead_of_it_and_what_is_more_important(queue):
    bookmark = services.Bookmark(seconds=60)
    first, second = sent(queue), sent(queue)
    assert services.fetch(queue.name, 1, bookmark=bookmark) == [first]
    important, third = sent(queue, priority=9), sent(queue)

    with round_trips() as seen:
        assert services.fetch(queue.name, 2, bookmark=bookmark) == [important, second]

    assert len(seen) == 1
    assert services.fetch(queue.name, 5, bookmark=bookmark) == [third]


def test_a_paused_queue_gives_nothing_and_locks_nothing(queue):
    sent(queue)
    services.fetch(queue.name)
    waiting = sent(queue)
    services.pause(queue.name)
    before = locker_of(waiting)

    assert services.fetch(queue.name) == []

    assert locker_of(waiting) == before
    services.resume(queue.name)
    assert services.fetch(queue.name) == [waiting]


def test_a_queue_that_is_gone_is_missed_at_the_next_fetch(queue):
    services.fetch(queue.name)
    services.delete_queue(queue.name)

    with pytest.raises(QueueNotFound):
        services.fetch(queue.name)


def test_a_queue_deleted_in_the_middle_of_its_first_fetch_gives_nothing_and_is_missed_by_the_next(queue):
    def delete(execute: Any, *args: Any) -> Any:
        result = execute(*args)
        connection.connection.execute("DELETE FROM jobqueue_queue WHERE name = %s", [queue.name])
        return result

    with connection.execute_wrapper(delete):
        assert services.fetch(queue.name) == []

    with pytest.raises(QueueNotFound):
        services.fetch(queue.name)


@pytest.mark.parametrize(
    ("before", "after"),
    (
        ({}, {"policy": "key_strict_fifo"}),
        ({}, {"partition": True}),
        ({"partition": True}, {}),
        ({"partition": True}, {"policy": "singleton"}),
    ),
)
def test_another_queue_of_the_same_name_is_noticed(db, before, after):
    services.create_queue("again", **before)
    services.fetch("again")
    services.delete_queue("again")
    services.create_queue("again", **after)
    try:
        first, _ = (services.send("again", singleton_key="a"), services.send("again", singleton_key="b"))
        assert first is not None

        jobs = services.fetch("again", 5)

        assert [job.singleton_key for job in jobs] == ["a", "b"]
        assert {job.policy for job in jobs} == {after.get("policy", "standard")}
    finally:
        services.delete_queue("again")


def test_a_job_that_is_not_whole_loads_the_rest_when_asked(queue):
    job = sent(queue, {"n": 1}, tags=["red"], priority=3)

    (claim,) = services.fetch(queue.name, whole=False)

    assert "tags" not in claim.__dict__
    assert (claim, claim.data, claim.attempt, claim.state) == (job, {"n": 1}, 1, JobState.ACTIVE)
    assert (claim.queue_id, claim.policy) == (queue.name, "standard")
    assert (claim.tags, claim.priority, claim.created_at) == (["red"], 3, job.created_at)
    services.complete(claim)


def test_parameters_bound_by_the_server_are_as_good(queue):
    """One message cannot hold several statements then, so they go one after the other, as one transaction."""
    jobs = [sent(queue) for _ in range(3)]
    services.fetch(queue.name)
    connection.close()
    connection.settings_dict["OPTIONS"]["server_side_binding"] = True
    try:
        claimed = services.fetch(queue.name, 2)
        finished = services.finish_many([(job, None) for job in claimed])
    finally:
        connection.close()
        del connection.settings_dict["OPTIONS"]["server_side_binding"]

    assert claimed == jobs[1:]
    assert finished.completed == [job.pk for job in claimed]
