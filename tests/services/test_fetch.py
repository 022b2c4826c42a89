"""Claiming: what is handed out, in which order, and only once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, QueueNotFound, UnsafeIsolation
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import ELIGIBLE, Hold, JobState
from tests.factories import JobFactory
from tests.past import ago, reread, rewrite

from .lives import sent

NAMES = ("queue", "fifo_queue", "singleton_queue", "stately_queue", "short_queue", "exclusive_queue")


@pytest.fixture(params=NAMES)
def any_queue(request: pytest.FixtureRequest) -> Queue:
    """A queue of each policy."""
    queue: Queue = request.getfixturevalue(request.param)
    return queue


def test_a_fetched_job_is_active_and_belongs_to_its_worker(any_queue):  # R013 R348 R349 R374
    sent(any_queue, {"n": 1}, singleton_key="a")

    (job,) = services.fetch(any_queue.name, worker="w")

    now = reread(job)
    assert (now.state, now.assignee, now.attempt, now.hold) == (JobState.ACTIVE, "w", 1, None)
    assert now.started_at == now.assigned_at
    assert now.started_at is not None
    assert (job.data, job.retry_count, job.state) == ({"n": 1}, 0, JobState.ACTIVE)
    assert (job.created_at, job.started_at, job.expire_at) == (now.created_at, now.started_at, now.expire_at)
    assert now.expire_at is not None


def test_an_empty_queue_gives_an_empty_list(any_queue):
    assert services.fetch(any_queue.name, 10) == []


def test_one_job_is_fetched_unless_more_are_asked_for(queue):  # R348
    jobs = [sent(queue) for _ in range(5)]

    assert services.fetch(queue.name) == jobs[:1]
    assert services.fetch(queue.name, 3) == jobs[1:4]
    assert services.fetch(queue.name, limit=10) == jobs[4:]


@pytest.mark.parametrize("limit", (0, -1, True, 1.0, "1", None))
def test_a_limit_is_a_number_of_jobs(queue, limit):
    sent(queue)

    with pytest.raises(InvalidOption, match="limit"):
        services.fetch(queue.name, limit)
    assert Job.objects.get().state == JobState.CREATED


def test_fetching_from_a_queue_that_does_not_exist_is_refused(db):
    with pytest.raises(QueueNotFound):
        services.fetch("nothing")


def test_jobs_come_by_priority_and_then_in_the_order_they_were_sent(queue):  # R319 R343 R350 B6
    jobs = [sent(queue, priority=priority) for priority in (0, 5, 0, -3, 5)]

    assert services.fetch(queue.name, 10) == [jobs[1], jobs[4], jobs[0], jobs[2], jobs[3]]


def test_the_order_is_the_same_one_by_one(queue):  # R350
    jobs = [sent(queue, priority=priority) for priority in (0, 5, 0, -3, 5)]

    assert [services.fetch(queue.name)[0] for _ in jobs] == [jobs[1], jobs[4], jobs[0], jobs[2], jobs[3]]


@pytest.mark.parametrize("state", sorted(set(JobState) - ELIGIBLE))
def test_only_waiting_jobs_are_fetched(queue, state):  # R351
    job = JobFactory(queue=queue, state=state)

    assert services.fetch(queue.name) == []
    assert reread(job).attempt == job.attempt


@pytest.mark.parametrize("state", sorted(ELIGIBLE))
def test_every_kind_of_waiting_job_is_fetched(any_queue, state):  # R013 R016
    job = JobFactory(queue=any_queue, state=state, singleton_key="a")

    (claimed,) = services.fetch(any_queue.name)

    assert (claimed, claimed.attempt) == (job, job.attempt + 1)
    assert reread(job).started_at == (job.started_at or claimed.started_at)  # I5: written once


def test_a_delayed_job_is_fetched_when_its_time_has_come(any_queue):  # R322 R340 R341 R351
    job = sent(any_queue, delay=60, singleton_key="a")
    assert reread(job).hold == Hold.UNTIL
    assert services.fetch(any_queue.name) == []

    rewrite(job, start_after=ago(seconds=1))

    assert services.fetch(any_queue.name) == [job]


def test_a_delayed_job_that_is_due_keeps_its_place_by_number(queue):  # R350
    delayed, later = sent(queue, delay=60), sent(queue)
    rewrite(delayed, start_after=ago(seconds=1))

    assert services.fetch(queue.name, 10) == [delayed, later]


def test_a_start_in_the_past_is_due_at_once(queue):  # R341
    job = sent(queue, start_after=timezone.now() - timedelta(days=1))

    assert services.fetch(queue.name) == [job]


def test_a_fresh_job_is_due_in_the_transaction_that_sent_it(queue):  # R351
    with transaction.atomic():
        job = sent(queue)

        assert services.fetch(queue.name) == [job]


def test_only_jobs_with_all_the_tags_are_fetched(any_queue):
    both = sent(any_queue, tags=["eu", "gpu"], singleton_key="a")
    one = sent(any_queue, tags=["eu"], singleton_key="b")
    none = sent(any_queue, singleton_key="c")

    assert services.fetch(any_queue.name, 10, tags=["gpu", "eu"]) == [both]
    assert services.fetch(any_queue.name, 10, tags=["eu"]) == [one]
    assert services.fetch(any_queue.name, 10, tags=["us"]) == []
    assert services.fetch(any_queue.name, 10) == [none]


def test_tagged_jobs_come_in_the_same_order(queue):  # R350
    jobs = [sent(queue, tags=["x"], priority=priority) for priority in (0, 5, 0, -3, 5)]
    sent(queue, priority=9)

    assert services.fetch(queue.name, 10, tags=["x"]) == [jobs[1], jobs[4], jobs[0], jobs[2], jobs[3]]


def test_the_head_of_a_key_that_lacks_the_tags_is_not_overtaken(fifo_queue):  # R085
    head = sent(fifo_queue, singleton_key="a")
    sent(fifo_queue, singleton_key="a", tags=["x"])

    assert services.fetch(fifo_queue.name, 10, tags=["x"]) == []
    assert services.fetch(fifo_queue.name, 10) == [head]


def test_jobs_of_other_queues_are_not_fetched(queue, short_queue):
    sent(short_queue)

    assert services.fetch(queue.name) == []


@pytest.mark.django_db(transaction=True)
def test_each_job_goes_to_one_worker_and_none_is_lost(queue, race):  # R318 R379 R381
    jobs = {sent(queue).pk for _ in range(40)}

    def work() -> list[object]:
        claimed: list[object] = []
        while found := services.fetch(queue.name, limit=3):
            claimed += [job.pk for job in found]
        return claimed

    claims = race(4, work)

    every = [pk for claimed in claims for pk in claimed]
    assert len(every) == len(set(every)) == 40
    assert set(every) == jobs
    assert not Job.objects.exclude(state=JobState.ACTIVE, attempt=1).exists()


@pytest.mark.django_db(transaction=True)
def test_a_worker_does_not_wait_for_a_job_that_another_has_locked(queue, race):  # R318 R380
    first, second = sent(queue), sent(queue)

    with transaction.atomic():
        assert services.fetch(queue.name) == [first]
        (others,) = race(1, lambda: services.fetch(queue.name, 10))  # it would wait for ever

    assert others == [second]


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_is_rolled_back_never_was(any_queue):  # R318 R381 I2
    job = sent(any_queue, singleton_key="a")

    with pytest.raises(RuntimeError), transaction.atomic():
        claim_and_crash(any_queue)

    assert reread(job).attempt == 0
    assert services.fetch(any_queue.name) == [job]


def claim_and_crash(queue: Queue) -> None:
    assert len(services.fetch(queue.name)) == 1
    raise RuntimeError


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("level", ("REPEATABLE READ", "SERIALIZABLE"))
def test_a_stricter_transaction_cannot_claim(fifo_queue, level):
    sent(fifo_queue, singleton_key="a")

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        with pytest.raises(UnsafeIsolation, match=level):
            services.fetch(fifo_queue.name)
    assert Job.objects.get().state == JobState.CREATED


def test_a_paused_queue_gives_nothing(any_queue):
    sent(any_queue, singleton_key="a")
    services.pause(any_queue.name)

    assert services.fetch(any_queue.name) == []
