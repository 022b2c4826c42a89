"""What a failed attempt leads to: another one, and when."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import JobState
from tests.factories import JobFactory
from tests.past import reread

from .lives import sent


def failing(queue: Queue, **options: object) -> Job:
    """A job whose attempt is about to fail."""
    return JobFactory(queue=queue, state=JobState.ACTIVE, **options)


def delay_of(job: Job) -> float:
    now = reread(job)
    assert now.last_retry_at is not None
    return (now.start_after - now.last_retry_at).total_seconds()


def test_a_failed_attempt_is_retried_until_the_limit(queue):  # R098 R355 R376 R382 R383
    sent(queue, retry_limit=2)

    for count in (1, 2):
        (job,) = services.fetch(queue.name)
        failure = services.fail(job, "boom")
        assert (failure.state, failure.retry_count, failure.will_retry) == (JobState.RETRY, count, True)
    (job,) = services.fetch(queue.name)
    failure = services.fail(job, "boom")

    assert (failure.state, failure.retry_count, failure.will_retry) == (JobState.FAILED, 2, False)
    assert failure.next_retry_at is None
    assert reread(job).finalized_at is not None
    assert services.fetch(queue.name) == []


def test_a_failure_says_what_becomes_of_the_job(queue):  # R353 R354
    job = failing(queue, retry_delay=60)

    failure = services.fail(job.pk, "boom")

    now = reread(job)
    assert failure == services.Failure(job.pk, JobState.RETRY, 1, True, now.start_after)
    assert (now.state, now.error, now.retry_count) == (JobState.RETRY, "boom", 1)


def test_a_job_without_a_limit_is_retried_for_ever(queue):  # B4
    job = failing(queue, retry_limit=None, retry_count=1000, attempt=1001)

    assert services.fail(job, "boom").state == JobState.RETRY


def test_a_job_with_a_limit_of_zero_is_never_retried(queue):  # R098
    assert services.fail(failing(queue, retry_limit=0), "boom").state == JobState.FAILED


def test_a_retry_waits_for_its_delay(queue):  # R099 R382
    job = failing(queue, retry_delay=60)

    services.fail(job, "boom")

    assert delay_of(job) == 60
    assert services.fetch(queue.name) == []


def test_a_retry_without_a_delay_is_due_at_once(queue):  # R099
    job = failing(queue)

    services.fail(job, "boom")

    assert delay_of(job) == 0
    assert services.fetch(queue.name) == [job]


@pytest.mark.parametrize("count", (0, 1, 2, 5))
def test_backoff_doubles_the_delay_with_jitter(queue, count):  # R102 R103 R320
    jobs = [
        failing(queue, retry_delay=10, retry_backoff=True, retry_limit=99, retry_count=count, attempt=count + 1)
        for _ in range(5)
    ]

    for job in jobs:
        services.fail(job, "boom")

    delays = [delay_of(job) for job in jobs]
    half = 10 * 2 ** (count + 1) / 2
    assert all(half <= delay < 2 * half for delay in delays)
    assert len(set(delays)) > 1


def test_backoff_without_a_delay_begins_with_a_second(queue):  # R101
    job = failing(queue, retry_delay=0, retry_backoff=True)

    services.fail(job, "boom")

    assert 1 <= delay_of(job) < 2


def test_backoff_stops_doubling_after_sixteen_retries(queue):  # R104
    job = failing(queue, retry_delay=1, retry_backoff=True, retry_limit=99, retry_count=40, attempt=41)

    services.fail(job, "boom")

    assert 2**15 <= delay_of(job) < 2**16


def test_backoff_keeps_to_the_longest_delay(queue):  # R103 R105
    job = failing(
        queue, retry_delay=10, retry_backoff=True, retry_delay_max=30, retry_limit=99, retry_count=9, attempt=10
    )

    services.fail(job, "boom")

    assert delay_of(job) == 30


def test_the_longest_delay_is_used_only_with_backoff(queue):  # R105
    job = failing(queue, retry_delay=60, retry_delay_max=30)

    services.fail(job, "boom")

    assert delay_of(job) == 60


def test_backoff_is_unbounded_by_default(queue):  # R105
    job = failing(queue, retry_delay=3600, retry_backoff=True, retry_limit=99, retry_count=15, attempt=16)

    services.fail(job, "boom")

    assert delay_of(job) >= 3600 * 2**15


def test_a_retry_goes_behind_what_waits_already(queue):  # R350 B6
    first, second = sent(queue), sent(queue)
    (job,) = services.fetch(queue.name)
    assert job == first

    services.fail(job, "boom")

    assert services.fetch(queue.name, 10) == [second, first]


def test_a_retry_of_an_unordered_queue_lets_the_others_run(queue):
    failing_job, other = sent(queue, retry_delay=60), sent(queue)
    services.fail(services.fetch(queue.name)[0], "boom")

    assert services.fetch(queue.name, 10) == [other]
    assert reread(failing_job).state == JobState.RETRY


def test_every_failed_attempt_is_kept_with_its_error(queue):
    sent(queue, retry_limit=1)
    for number in (1, 2):
        (job,) = services.fetch(queue.name, worker=f"w{number}")
        services.fail(job, f"boom {number}")

    kept = [(entry["attempt"], entry["worker"], entry["error"]) for entry in reread(job).attempts]
    assert kept == [(1, "w1", "boom 1"), (2, "w2", "boom 2")]


def test_the_time_of_the_attempt_s_end_is_kept(queue):  # B16
    job = failing(queue)

    services.fail(job, "boom")

    assert reread(job).attempt_finished_at is not None
    assert reread(job).finalized_at is None
