"""Attempts that took longer than they were allowed."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost
from django_jobqueue.models import Job, Worker
from django_jobqueue.states import FailureReason, JobState
from tests.factories import JobFactory
from tests.past import ago, reread, rewrite

from .lives import sent

pytestmark = pytest.mark.django_db


def overdue(queue, **options) -> Job:
    return rewrite(JobFactory(queue=queue, state=JobState.ACTIVE, **options), expire_at=ago(seconds=1))


def test_an_attempt_may_last_as_long_as_its_job_says(queue):  # R116 R333
    sent(queue)
    sent(queue, expire_in_seconds=5)

    for job, seconds in zip(services.fetch(queue.name, 2), (900, 5), strict=True):
        now = reread(job)
        assert now.expire_at is not None
        assert now.assigned_at is not None
        assert (now.expire_at - now.assigned_at).total_seconds() == seconds


def test_an_overdue_job_with_retries_left_waits_for_the_next_attempt(queue):  # R116 R324 R360 B10
    job = overdue(queue, retry_delay=60)

    assert services.expire() == {queue.name: 1}

    now = reread(job)
    assert (now.state, now.retry_count, now.reason) == (JobState.RETRY, 1, FailureReason.EXPIRED)
    assert "900 seconds" in now.error
    assert now.last_retry_at is not None
    assert (now.start_after - now.last_retry_at).total_seconds() == 60


def test_an_overdue_job_without_retries_left_is_expired(queue):  # R324 R360 R377 B10
    job = overdue(queue, retry_limit=0)

    assert services.expire() == {queue.name: 1}

    now = reread(job)
    assert (now.state, now.reason) == (JobState.EXPIRED, FailureReason.EXPIRED)
    assert now.finalized_at is not None


def test_expire_counts_per_queue(queue, fifo_queue):  # R360
    for _ in range(3):
        overdue(queue)
    for key in "ab":
        overdue(fifo_queue, singleton_key=key)

    assert services.expire() == {queue.name: 3, fifo_queue.name: 2}
    assert services.expire() == {}


def test_a_job_in_time_is_left_alone(queue):  # R324
    job = JobFactory(queue=queue, state=JobState.ACTIVE)

    assert services.expire() == {}
    assert reread(job).state == JobState.ACTIVE


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.ACTIVE}))
def test_only_active_jobs_expire(queue, state):  # R324
    job = rewrite(JobFactory(queue=queue, state=state), expire_at=ago(days=1))

    assert services.expire() == {}
    assert reread(job).state == state


def test_an_expired_job_blocks_its_key_like_a_failed_one(fifo_queue):  # R088 B10
    overdue(fifo_queue, singleton_key="a", retry_limit=0)
    sent(fifo_queue, singleton_key="a")

    services.expire()

    assert services.blocked_keys(fifo_queue.name) == ["a"]
    assert services.fetch(fifo_queue.name) == []


def test_many_overdue_jobs_are_all_expired(queue):  # R324 R360
    JobFactory.create_batch(450, queue=queue, state=JobState.ACTIVE)
    Job.objects.update(expire_at=ago(seconds=1))

    assert services.expire() == {queue.name: 450}
    assert not Job.objects.filter(state=JobState.ACTIVE).exists()


def test_expiry_does_not_need_a_heartbeat_nor_a_heartbeat_an_expiry(queue):  # R111 R112
    too_long = overdue(queue, heartbeat_seconds=10)  # alive, and too slow
    vanished = JobFactory(queue=queue, state=JobState.ACTIVE, heartbeat_seconds=10)
    rewrite(vanished, heartbeat_at=ago(minutes=1))  # in time, and silent

    assert services.expire() == {queue.name: 1}
    assert (reread(too_long).reason, reread(vanished).state) == (FailureReason.EXPIRED, JobState.ACTIVE)
    assert services.recover_lost() == {queue.name: 1}
    assert (reread(vanished).state, reread(vanished).reason) == (JobState.UNKNOWN_RETRY, FailureReason.HEARTBEAT)


def test_a_live_worker_is_given_the_grace_to_stop_the_handler_itself(queue):  # R324
    worker = Worker.objects.create(name="w")
    job = overdue(queue)
    rewrite(job, incarnation=worker.pk)

    assert services.expire() == {}
    Job.objects.update(expire_at=ago(seconds=31))
    assert services.expire() == {queue.name: 1}


@pytest.mark.parametrize("gone", ({"stopped_at": ago(seconds=0)}, {"heartbeat_at": ago(minutes=5)}))
def test_a_dead_worker_is_given_no_grace(queue, gone):  # R324
    worker = Worker.objects.create(name="w", **gone)
    rewrite(overdue(queue), incarnation=worker.pk)

    assert services.expire() == {queue.name: 1}


def test_a_cancellation_nobody_answers_ends_as_unknown(queue):
    job = rewrite(JobFactory(queue=queue, state=JobState.CANCELLING), cancel_requested_at=ago(seconds=301))
    fresh = JobFactory(queue=queue, state=JobState.CANCELLING)

    services.expire()

    assert reread(job).state == JobState.UNKNOWN_STOPPED
    assert reread(fresh).state == JobState.CANCELLING


def test_the_attempt_that_expired_cannot_complete_any_more(queue):  # I7
    sent(queue)
    (job,) = services.fetch(queue.name)
    rewrite(job, expire_at=ago(seconds=1))
    services.expire()
    (again,) = services.fetch(queue.name)

    with pytest.raises(ClaimLost, match="no longer held"):
        services.complete(job)
    services.complete(again)
