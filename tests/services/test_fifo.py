"""Strict order per key (R031)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, KeyRequired, NotOrdered, QueueNotFound
from django_jobqueue.models import BlockedKey, Job, Queue
from django_jobqueue.states import BLOCKING, DEAD, RETRYING, Hold, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread, rewrite

from .lives import sent


def fetched(queue: Queue) -> list[Job]:
    return services.fetch(queue.name, limit=10)


def send_three(queue: Queue, key: str = "a") -> tuple[Job, Job, Job]:
    return sent(queue, singleton_key=key), sent(queue, singleton_key=key), sent(queue, singleton_key=key)


# -------------------------------------------------------------------------------------------------- the order


def test_jobs_of_a_key_run_one_after_another_in_the_order_they_were_sent(fifo_queue):  # R001 R013 R014 R083 R085 R086
    jobs = send_three(fifo_queue)

    for job in jobs:
        assert fetched(fifo_queue) == [job]
        assert fetched(fifo_queue) == []
        services.complete(job.pk)
    assert fetched(fifo_queue) == []
    assert all(reread(job).state == JobState.COMPLETED for job in jobs)


def test_jobs_of_different_keys_run_at_once(fifo_queue):  # R001 R028
    a, _, _ = send_three(fifo_queue, "a")
    b, _, _ = send_three(fifo_queue, "b")

    assert fetched(fifo_queue) == [a, b]


def test_the_same_key_in_another_queue_is_another_lane(fifo_queue):  # R001
    other = services.create_fifo_queue("others")
    sent(fifo_queue, singleton_key="a")
    fetched(fifo_queue)

    job = sent(other, singleton_key="a")

    assert fetched(other) == [job]


@pytest.mark.parametrize("state", sorted(BLOCKING - RETRYING))
def test_a_blocking_job_keeps_its_key_to_itself(fifo_queue, state):  # R002 R004 R017 R086 R088
    JobFactory(queue=fifo_queue, state=state, singleton_key="a")
    waiting = sent(fifo_queue, singleton_key="a")

    assert fetched(fifo_queue) == []
    assert reread(waiting).state == JobState.CREATED


@pytest.mark.parametrize("state", sorted(RETRYING))
def test_a_key_waits_for_a_retry_as_long_as_that_takes(fifo_queue, state):  # R003 R015 R016 R087 B18
    blocker = JobFactory(
        queue=fifo_queue, state=state, singleton_key="a", start_after=timezone.now() + timedelta(hours=1)
    )
    waiting = sent(fifo_queue, singleton_key="a", priority=100)
    assert fetched(fifo_queue) == []

    rewrite(blocker, start_after=ago(seconds=1))

    assert fetched(fifo_queue) == [blocker]
    services.complete(blocker.pk)
    assert fetched(fifo_queue) == [waiting]


def test_a_failed_attempt_blocks_its_key_for_the_retry_delay(fifo_queue):  # R003 R015 R022 R087
    first = sent(fifo_queue, singleton_key="a", retry_limit=1, retry_delay=3600)
    sent(fifo_queue, singleton_key="a")
    (job,) = fetched(fifo_queue)

    failure = services.fail(job, "boom")

    assert failure.state == JobState.RETRY
    assert fetched(fifo_queue) == []
    rewrite(first, start_after=ago(seconds=1))
    assert fetched(fifo_queue) == [first]


def test_a_key_stays_blocked_when_the_retries_are_used_up(fifo_queue):  # R004 R017 R088
    first, second, _ = (sent(fifo_queue, singleton_key="a", retry_limit=1) for _ in range(3))
    for _ in range(2):
        (job,) = fetched(fifo_queue)
        assert job == first
        services.fail(job, "boom")

    assert reread(first).state == JobState.FAILED
    assert fetched(fifo_queue) == []
    services.expire(), services.recover_lost(), services.cleanup(), services.check_lanes()
    assert fetched(fifo_queue) == []
    assert reread(second).state == JobState.CREATED


def test_a_blocked_key_does_not_starve_others(fifo_queue):  # R028 I3
    JobFactory(queue=fifo_queue, singleton_key="a", state=JobState.FAILED)
    for _ in range(300):
        JobFactory(queue=fifo_queue, singleton_key="a", priority=5)
    free = [sent(fifo_queue, singleton_key=f"free {number}") for number in range(5)]

    assert fetched(fifo_queue) == free


def test_priority_inside_a_key_is_ignored_and_ranks_keys(fifo_queue):  # B6 B24
    a1 = sent(fifo_queue, singleton_key="a")
    sent(fifo_queue, singleton_key="a", priority=100)
    b1 = sent(fifo_queue, singleton_key="b", priority=5)

    assert fetched(fifo_queue) == [b1, a1]


def test_a_batch_is_in_the_order_of_its_items(fifo_queue):  # R085
    items: list[services.Item] = [{"singleton_key": key, "data": number} for number, key in enumerate("abab")]
    services.send_many(fifo_queue.name, items)

    first = fetched(fifo_queue)
    services.finish_many([(job, None) for job in first])
    second = fetched(fifo_queue)

    assert [job.data for job in first + second] == [0, 1, 2, 3]


@pytest.mark.django_db(transaction=True)
def test_racing_workers_never_run_two_jobs_of_a_key(fifo_queue, race):  # R001 R002 R010 R379 I1
    for key in ("a", "b"):
        for number in range(10):
            sent(fifo_queue, number, singleton_key=key)
    order: list[tuple[str, object]] = []

    def work() -> None:
        while Job.objects.exclude(state=JobState.COMPLETED).exists():
            for job in services.fetch(fifo_queue.name, limit=2):
                running = Job.objects.filter(singleton_key=job.singleton_key, state=JobState.ACTIVE)
                assert [other.pk for other in running] == [job.pk]
                order.append((job.singleton_key, job.data))
                services.complete(job)

    race(4, work)

    assert [number for key, number in order if key == "a"] == list(range(10))
    assert [number for key, number in order if key == "b"] == list(range(10))


def test_the_database_itself_refuses_a_second_running_job(fifo_queue):  # R002 R010 R011 B22
    JobFactory(queue=fifo_queue, state=JobState.ACTIVE, singleton_key="a")
    waiting = JobFactory(queue=fifo_queue, singleton_key="a")

    with pytest.raises(IntegrityError, match="unique"), transaction.atomic():
        rewrite(waiting, state=JobState.ACTIVE)
    assert fetched(fifo_queue) == []


# ------------------------------------------------------------------------------------------------ the sending


def test_a_fifo_queue_is_made_from_a_name_and_options(db):  # R018 R019
    plain = services.create_fifo_queue("plain")
    other = services.create_fifo_queue("other", expire_in_seconds=60, retention_seconds=120)

    assert plain.policy == other.policy == "key_strict_fifo"
    assert (other.expire_in_seconds, other.retention_seconds) == (60, 120)
    assert sent(other, singleton_key="a").expire_in_seconds == 60


@pytest.mark.parametrize(
    "option", ({"retry_limit": 1}, {"retry_delay": 1}, {"retry_backoff": True}, {"retry_delay_max": 9})
)
def test_create_fifo_queue_takes_no_retry_options(db, option):  # R020 B3
    with pytest.raises(InvalidOption, match="create_fifo_queue"):
        services.create_fifo_queue("q", **option)

    assert not Queue.objects.filter(pk="q").exists()
    queue = services.create_queue("q", policy="fifo", **option)
    assert {name: getattr(queue, name) for name in option} == option


@pytest.mark.parametrize("key", (None, ""))
def test_a_job_for_a_fifo_queue_needs_a_key(fifo_queue, key):  # R021 R084 B2 B20
    with pytest.raises(KeyRequired) as caught:
        services.send(fifo_queue.name, singleton_key=key)
    assert str(caught.value).startswith("FIFO queues require a singleton_key")
    with pytest.raises(KeyRequired, match=r"^FIFO queues require a singleton_key") as caught:
        services.send_many(fifo_queue.name, [{"singleton_key": "a"}, {"singleton_key": key}, {}])
    assert caught.value.places == [1, 2]
    assert not Job.objects.exists()


def test_retry_options_belong_to_each_job_of_a_fifo_queue(fifo_queue):  # R022
    job = sent(fifo_queue, singleton_key="a", retry_limit=9, retry_delay=8, retry_backoff=True)

    stored = reread(job)
    assert (stored.retry_limit, stored.retry_delay, stored.retry_backoff) == (9, 8, True)


def test_a_key_never_refuses_a_send(fifo_queue):  # B7
    JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="a")

    assert len(send_three(fifo_queue)) == 3


# ---------------------------------------------------------------------------------------------- blocked keys


def test_blocked_keys_are_those_of_jobs_that_failed_for_good(fifo_queue):  # R023 R025 R130
    other = QueueFactory(policy="key_strict_fifo")
    JobFactory(queue=other, state=JobState.FAILED, singleton_key="elsewhere")
    for state in JobState:
        JobFactory(queue=fifo_queue, state=state, singleton_key=f"key of {state}")

    assert sorted(services.blocked_keys(fifo_queue.name)) == ["key of expired", "key of failed"]


def test_a_blocked_key_is_listed_once(fifo_queue):  # R024
    JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="a")
    JobFactory.create_batch(3, queue=fifo_queue, singleton_key="a")

    assert services.blocked_keys(fifo_queue.name) == ["a"]


def test_the_longest_blocked_key_comes_first(fifo_queue):  # R130
    for key, hours in (("b", 1), ("c", 3), ("a", 2)):
        rewrite(JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key=key), finalized_at=ago(hours=hours))

    assert services.blocked_keys(fifo_queue.name) == ["c", "a", "b"]


@pytest.mark.parametrize("name", ("queue", "singleton_queue", "stately_queue", "short_queue", "exclusive_queue"))
def test_only_ordered_queues_have_blocked_keys(request, name):  # R025 R131
    queue = request.getfixturevalue(name)
    JobFactory(queue=queue, state=JobState.FAILED, singleton_key="a")

    with pytest.raises(NotOrdered, match=queue.policy):
        services.blocked_keys(queue.name)
    assert not BlockedKey.objects.exists()


def test_blocked_keys_of_a_queue_that_does_not_exist_are_an_error(db):
    with pytest.raises(QueueNotFound):
        services.blocked_keys("nothing")


def test_a_blocked_key_row_says_who_waits_behind_it_and_since_when(fifo_queue):  # R023
    blocker = JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="a")
    oldest, _ = JobFactory.create_batch(2, queue=fifo_queue, singleton_key="a")

    (row,) = BlockedKey.objects.with_waiting()

    assert (row.pk, row.singleton_key, row.waiting) == (blocker.pk, "a", 2)
    assert row.blocked_since == blocker.finalized_at
    assert row.oldest_waiting_at == oldest.created_at


# ----------------------------------------------------------------------------------------------- unblocking


@pytest.mark.parametrize("state", sorted(DEAD))
def test_deleting_the_failed_job_lets_the_next_go(fifo_queue, state):  # R005 R026 R089
    dead = JobFactory(queue=fifo_queue, state=state, singleton_key="a")
    waiting = sent(fifo_queue, singleton_key="a")
    assert fetched(fifo_queue) == []
    assert reread(waiting).hold == Hold.LANE

    assert services.delete(dead.pk, queue=fifo_queue.name) == 1

    assert services.blocked_keys(fifo_queue.name) == []
    assert fetched(fifo_queue) == [waiting]


@pytest.mark.parametrize("state", sorted(DEAD))
def test_a_retried_job_is_the_next_of_its_key(fifo_queue, state):  # R006 R012 R016 R027 R089
    dead = JobFactory(queue=fifo_queue, state=state, singleton_key="a", retry_limit=2)
    waiting = sent(fifo_queue, singleton_key="a", priority=9)
    assert fetched(fifo_queue) == []

    assert services.retry(dead.pk, queue=fifo_queue.name).moved == [dead.pk]

    retried = reread(dead)
    assert (retried.state, retried.retry_limit) == (JobState.RETRY, 3)
    assert retried.finalized_at is None
    assert services.blocked_keys(fifo_queue.name) == []
    assert fetched(fifo_queue) == [dead]
    services.complete(dead.pk)
    assert fetched(fifo_queue) == [waiting]


def test_a_retried_job_that_fails_again_blocks_again(fifo_queue):  # R004 R027
    dead = JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="a", retry_limit=0)
    sent(fifo_queue, singleton_key="a")
    services.retry(dead.pk)
    (job,) = fetched(fifo_queue)

    assert services.fail(job, "boom", for_good=True).state == JobState.FAILED

    assert services.blocked_keys(fifo_queue.name) == ["a"]
    assert fetched(fifo_queue) == []


def test_skipping_the_failed_job_lets_the_next_go(fifo_queue):  # R005
    dead = JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="a")
    waiting = sent(fifo_queue, singleton_key="a")

    services.skip(dead, reason="bad data", operator="ann")

    assert (reread(dead).state, reread(dead).note) == (JobState.STOPPED, "ann: bad data")
    assert fetched(fifo_queue) == [waiting]
