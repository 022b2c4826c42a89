"""Copies of jobs that failed for good, in the queue that their queue names."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job, Queue
from django_jobqueue.options import JOB_OPTIONS
from django_jobqueue.states import Hold, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread, rewrite

from .lives import sent

OPTIONS: dict[str, Any] = {
    "retry_limit": 0,
    "retry_delay": 7,
    "retry_backoff": True,
    "retry_delay_max": 70,
    "expire_in_seconds": 60,
    "heartbeat_seconds": 15,
    "retention_seconds": 120,
    "delete_after_seconds": 240,
    "delete_failed_after_seconds": 480,
}


@pytest.fixture
def dead_queue(db: None) -> Queue:
    return QueueFactory(name="dead")


@pytest.fixture
def queue(dead_queue: Queue) -> Queue:
    return QueueFactory(name="work", dead_letter=dead_queue, retry_limit=0)


@pytest.fixture
def fifo_queue(dead_queue: Queue) -> Queue:
    return QueueFactory(name="orders", policy="key_strict_fifo", dead_letter=dead_queue, retry_limit=0)


def fail_one(queue: Queue, **options: Any) -> Job:
    sent(queue, {"n": 1}, **options)
    (job,) = services.fetch(queue.name)
    services.fail(job, "boom")
    return job


def test_a_job_that_failed_for_good_is_copied(queue, dead_queue):  # R094 R095 R323 R383
    job = fail_one(queue, name="mail", priority=5, tags=["x"], group_key="g")

    (copy,) = Job.objects.in_queue(dead_queue.name)
    assert copy.pk != job.pk
    assert (copy.state, copy.attempt, copy.retry_count) == (JobState.CREATED, 0, 0)
    assert (copy.data, copy.name, copy.priority, copy.tags, copy.group_key) == ({"n": 1}, "mail", 5, ["x"], "g")
    assert (copy.source_id, copy.source_queue) == (job.pk, queue.name)
    assert (copy.error, copy.error_summary) == ("", "boom")
    assert reread(job).state == JobState.FAILED
    assert services.fetch(dead_queue.name) == [copy]


def test_the_copy_has_the_retry_and_retention_options_of_the_job(queue, dead_queue):  # R096
    fail_one(queue, **OPTIONS)

    copy = Job.objects.get(queue=dead_queue)
    assert set(OPTIONS) == set(JOB_OPTIONS)
    assert {name: getattr(copy, name) for name in OPTIONS} == OPTIONS


def test_a_job_with_retries_left_is_not_copied(queue, dead_queue):  # R095
    fail_one(queue, retry_limit=1)

    assert not Job.objects.in_queue(dead_queue.name).exists()


def test_a_completed_job_is_not_copied(queue, dead_queue):  # R095
    sent(queue)
    services.complete(services.fetch(queue.name)[0])

    assert not Job.objects.in_queue(dead_queue.name).exists()


@pytest.mark.parametrize("end", ("expire", "heartbeat", "for_good", "crash_loop"))
def test_every_way_to_fail_for_good_leads_to_the_dead_letters(queue, dead_queue, end):  # R095 R113 B10 B11
    left = 0 if end in ("expire", "heartbeat") else 9
    job = JobFactory(queue=queue, state=JobState.ACTIVE, retry_limit=left, crashes=2)

    if end == "expire":
        rewrite(job, expire_at=ago(hours=1))
        services.expire()
    elif end == "for_good":
        services.fail(job, "boom", for_good=True)
    else:
        rewrite(job, heartbeat_seconds=10, heartbeat_at=ago(hours=1))
        services.recover_lost()

    assert list(Job.objects.in_queue(dead_queue.name).values_list("source_id", flat=True)) == [job.pk]


@pytest.mark.parametrize("end", ("cancel", "stop"))
def test_a_job_that_was_stopped_is_not_copied(queue, dead_queue, end):  # R095
    job = JobFactory(queue=queue, state=JobState.ACTIVE)

    services.cancel([job.pk], force=True) if end == "cancel" else services.stop(job)

    assert not Job.objects.in_queue(dead_queue.name).exists()


def test_an_ordered_key_stays_blocked_although_a_copy_was_made(fifo_queue, dead_queue):  # B23
    fail_one(fifo_queue, singleton_key="a")
    sent(fifo_queue, singleton_key="a")

    assert services.blocked_keys(fifo_queue.name) == ["a"]
    assert services.fetch(fifo_queue.name) == []
    assert Job.objects.in_queue(dead_queue.name).count() == 1


def test_a_queue_that_skips_copies_too(fifo_queue, dead_queue):  # B23
    services.update_queue(fifo_queue.name, on_exhausted="skip")

    job = fail_one(fifo_queue, singleton_key="a")

    assert reread(job).state == JobState.STOPPED
    assert Job.objects.get(queue=dead_queue).source_id == job.pk


def test_the_copy_keeps_its_key_as_source_key_in_an_unordered_queue(fifo_queue, dead_queue):  # B35
    first = fail_one(fifo_queue, singleton_key="a")
    services.delete([first.pk])
    fail_one(fifo_queue, singleton_key="a")

    copies = Job.objects.in_queue(dead_queue.name)
    assert [(copy.singleton_key, copy.source_key) for copy in copies] == [("", "a"), ("", "a")]


def test_the_copy_keeps_its_key_in_an_ordered_queue(db):  # B35
    dead = QueueFactory(name="dead", policy="key_strict_fifo")
    queue = QueueFactory(name="orders", policy="key_strict_fifo", dead_letter=dead, retry_limit=0)

    first = fail_one(queue, singleton_key="a")
    services.delete([first.pk])
    second = fail_one(queue, singleton_key="a")

    copies = Job.objects.in_queue(dead.name).order_by("seq")
    assert [(copy.singleton_key, copy.source_id) for copy in copies] == [("a", first.pk), ("a", second.pk)]
    assert services.fetch(dead.name, 10) == [copies[0]]


def test_a_keyless_job_gets_its_queue_as_key_among_ordered_dead_letters(db):  # B35
    dead = QueueFactory(name="dead", policy="key_strict_fifo")
    queue = QueueFactory(name="work", dead_letter=dead, retry_limit=0)

    fail_one(queue)

    assert Job.objects.get(queue=dead).singleton_key == queue.name


def test_a_missing_dead_letter_queue_never_prevents_a_failure(queue, dead_queue, caplog):  # B35
    caplog.set_level(logging.WARNING)
    Queue.objects.filter(pk=queue.name).update(dead_letter="gone")

    job = fail_one(queue)

    assert reread(job).state == JobState.FAILED
    assert "dead-letter queue is missing" in caplog.text


def test_dead_letters_have_their_own_dead_letters(queue, dead_queue):  # R095
    services.create_queue("buried")
    services.update_queue(dead_queue.name, dead_letter="buried")
    fail_one(queue)

    (copy,) = services.fetch(dead_queue.name)
    services.fail(copy, "again")

    buried = Job.objects.get(queue="buried")
    assert (buried.source_id, buried.source_queue, buried.data) == (copy.pk, dead_queue.name, {"n": 1})


def test_a_job_retried_and_failed_again_is_copied_again(queue, dead_queue):  # R095
    job = fail_one(queue)
    services.retry(job.pk)
    (job,) = services.fetch(queue.name)

    services.fail(job, "again", for_good=True)

    assert Job.objects.in_queue(dead_queue.name).filter(source_id=job.pk).count() == 2


def test_a_copy_behind_a_blocked_key_of_ordered_dead_letters_waits(db):  # B35
    dead = QueueFactory(name="dead", policy="key_strict_fifo")
    queue = QueueFactory(name="orders", policy="key_strict_fifo", dead_letter=dead, retry_limit=0)
    JobFactory(queue=dead, state=JobState.FAILED, singleton_key="a")

    fail_one(queue, singleton_key="a")

    assert services.fetch(dead.name) == []
    assert Job.objects.get(queue=dead, state=JobState.CREATED).hold == Hold.LANE
