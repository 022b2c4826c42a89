"""Jobs of workers that vanished, heartbeats, and warnings of backlogs."""

from __future__ import annotations

import logging

import pytest
from django.db import IntegrityError, transaction

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost, InvalidOption
from django_jobqueue.models import Job, Queue, Worker
from django_jobqueue.signals import queue_backlog
from django_jobqueue.states import FailureReason, JobState
from tests.factories import JobFactory
from tests.past import ago, reread, rewrite

from .lives import sent

pytestmark = pytest.mark.django_db


def silent(queue: Queue, **options: object) -> Job:
    """A job whose own heartbeat stopped."""
    job = JobFactory(queue=queue, state=JobState.ACTIVE, heartbeat_seconds=10, **options)
    return rewrite(job, heartbeat_at=ago(seconds=11))


# ------------------------------------------------------------------------------------------------- heartbeats


def test_a_job_has_no_heartbeat_unless_asked_for(queue):  # R106
    sent(queue)

    (job,) = services.fetch(queue.name)

    assert (reread(job).heartbeat_seconds, reread(job).heartbeat_at) == (None, None)
    rewrite(job, assigned_at=ago(hours=9))
    assert services.recover_lost() == {}


def test_a_heartbeat_comes_from_the_queue_or_the_job(queue):  # R108
    services.update_queue(queue.name, heartbeat_seconds=20)
    sent(queue)
    sent(queue, heartbeat_seconds=30)

    jobs = services.fetch(queue.name, 2)

    assert [job.heartbeat_seconds for job in jobs] == [20, 30]
    assert all(reread(job).heartbeat_at == reread(job).assigned_at for job in jobs)


@pytest.mark.parametrize("seconds", (0, 1, 9))
def test_a_heartbeat_of_less_than_ten_seconds_is_refused(queue, seconds):  # R107
    with pytest.raises(InvalidOption, match="heartbeat_seconds"):
        services.send(queue.name, heartbeat_seconds=seconds)
    with pytest.raises(IntegrityError, match="heartbeat_at_least_10"), transaction.atomic():
        Queue.objects.filter(pk=queue.name).update(heartbeat_seconds=seconds)


def test_a_silent_job_goes_to_another_worker_at_the_cost_of_a_retry(queue):  # R110 R112 R113 B11
    job = silent(queue, retry_delay=60)

    assert services.recover_lost() == {queue.name: 1}

    now = reread(job)
    assert (now.state, now.retry_count, now.reason) == (JobState.UNKNOWN_RETRY, 1, FailureReason.HEARTBEAT)
    assert now.assignee == job.assignee
    assert job.assignee in now.error
    assert now.last_retry_at is not None
    assert (now.start_after - now.last_retry_at).total_seconds() == 60


def test_a_silent_job_without_retries_left_fails(queue):  # R110 R113 B11
    job = silent(queue, retry_limit=0)

    services.recover_lost()

    assert (reread(job).state, reread(job).reason) == (JobState.FAILED, FailureReason.HEARTBEAT)


def test_a_job_heard_of_in_time_is_left_alone(queue):  # R110
    job = rewrite(JobFactory(queue=queue, state=JobState.ACTIVE, heartbeat_seconds=60), heartbeat_at=ago(seconds=50))

    assert services.recover_lost() == {}
    assert reread(job).state == JobState.ACTIVE


def test_a_touch_is_a_heartbeat(queue):  # R110
    sent(queue, heartbeat_seconds=10)
    (job,) = services.fetch(queue.name)
    rewrite(job, heartbeat_at=ago(minutes=1))

    assert services.touch(job) == JobState.ACTIVE

    assert services.recover_lost() == {}


def test_a_touch_tells_of_a_cancellation(queue):
    sent(queue)
    (job,) = services.fetch(queue.name)
    services.cancel([job.pk])

    assert services.touch(job) == JobState.CANCELLING


def test_a_touch_by_a_worker_that_lost_its_claim_changes_nothing(queue):  # I7
    job = silent(queue)
    services.recover_lost()
    before = reread(job).heartbeat_at

    with pytest.raises(ClaimLost):
        services.touch(job)
    assert reread(job).heartbeat_at == before


def test_a_late_result_of_a_job_that_went_silent_is_accepted(queue):
    job = silent(queue)
    services.recover_lost()

    services.complete(job, {"late": True})

    assert (reread(job).state, reread(job).output) == (JobState.COMPLETED, {"late": True})


@pytest.mark.parametrize("limit", (1, 2, None))
def test_an_attempt_that_went_silent_and_fails_later_costs_one_retry(queue, limit):  # R113 B11
    job = silent(queue, retry_limit=limit)
    services.recover_lost()

    failure = services.fail(job, "boom")

    assert (failure.state, failure.retry_count) == (JobState.RETRY, 1)
    assert (reread(job).retry_count, reread(job).error) == (1, "boom")


def test_an_attempt_taken_back_without_a_charge_costs_its_retry_when_it_fails_later(queue):  # B11
    job = JobFactory(queue=queue, state=JobState.ACTIVE, retry_limit=0)
    services.mark_worker_unresponsive(job.assignee)

    assert services.fail(job, "boom").state == JobState.FAILED


# ----------------------------------------------------------------------------------------------- lost workers


def test_the_jobs_of_a_silent_worker_are_recovered(queue):  # R112 R113 B11
    gone = Worker.objects.create(name="gone", heartbeat_at=ago(seconds=31))
    alive = Worker.objects.create(name="alive")
    lost = JobFactory(queue=queue, state=JobState.ACTIVE, incarnation=gone.pk)
    kept = JobFactory(queue=queue, state=JobState.ACTIVE, incarnation=alive.pk)

    assert services.recover_lost() == {queue.name: 1}

    assert (reread(lost).state, reread(lost).reason) == (JobState.UNKNOWN_RETRY, FailureReason.WORKER_LOST)
    assert reread(kept).state == JobState.ACTIVE
    gone.refresh_from_db()
    alive.refresh_from_db()
    assert gone.stopped_at is not None
    assert alive.stopped_at is None
    assert services.recover_lost() == {}


def test_whoever_saw_a_worker_die_says_so(queue):
    worker = Worker.objects.create(name="w")
    job = JobFactory(queue=queue, state=JobState.ACTIVE, incarnation=worker.pk)

    assert services.recover_lost([worker.pk], how="died of SIGKILL") == {queue.name: 1}

    assert "died of SIGKILL" in reread(job).error
    worker.refresh_from_db()
    assert worker.exit_text == "died of SIGKILL"


def test_a_job_that_takes_down_its_workers_fails_whatever_its_limit(queue):  # B11
    sent(queue, retry_limit=None)

    for crash in (1, 2, 3):
        worker = Worker.objects.create(name=f"w{crash}")
        (job,) = services.fetch(queue.name, incarnation=worker.pk)
        services.recover_lost([worker.pk])

    assert (reread(job).state, reread(job).reason) == (JobState.FAILED, FailureReason.CRASH_LOOP)


def test_a_result_ends_a_row_of_crashes(queue):  # B11
    job = JobFactory(queue=queue, state=JobState.ACTIVE, retry_limit=9, crashes=2)

    services.fail(job, "boom")

    assert reread(job).crashes == 0


def test_a_lost_worker_leaves_its_key_blocked_by_its_job(fifo_queue):  # R003 R087
    job = silent(fifo_queue, singleton_key="a")
    waiting = sent(fifo_queue, singleton_key="a")
    services.recover_lost()

    assert services.fetch(fifo_queue.name, 10) == [job]
    services.complete(job.pk)
    assert services.fetch(fifo_queue.name, 10) == [waiting]


def test_a_cancelling_job_of_a_lost_worker_ends_as_unknown(queue):
    worker = Worker.objects.create(name="gone", heartbeat_at=ago(seconds=31))
    job = JobFactory(queue=queue, state=JobState.CANCELLING, incarnation=worker.pk)

    services.recover_lost()

    assert reread(job).state == JobState.UNKNOWN_STOPPED


# -------------------------------------------------------------------------------------------------- backlogs


@pytest.fixture
def warned(db):
    """What the signal said."""
    heard: list[tuple[str, int]] = []

    def hear(queue: Queue, waiting: int, **kwargs: object) -> None:
        heard.append((queue.name, waiting))

    queue_backlog.connect(hear)
    yield heard
    queue_backlog.disconnect(hear)


def test_a_queue_with_more_waiting_jobs_than_its_size_is_warned_of(queue, warned, caplog):  # R097
    caplog.set_level(logging.WARNING)
    services.update_queue(queue.name, warning_queue_size=3)
    JobFactory.create_batch(2, queue=queue)
    JobFactory.create_batch(2, queue=queue, state=JobState.RETRY)

    assert services.warn_backlogs() == {queue.name: 4}

    assert warned == [(queue.name, 4)]
    (record,) = [record for record in caplog.records if record.message.startswith("backlog")]
    assert (record.__dict__["queue"], record.__dict__["waiting"]) == (queue.name, 4)


def test_a_queue_at_its_size_is_not_warned_of(queue, fifo_queue, warned):  # R097
    services.update_queue(queue.name, warning_queue_size=2)
    JobFactory.create_batch(2, queue=queue)
    for state in (JobState.ACTIVE, JobState.COMPLETED, JobState.FAILED):
        JobFactory(queue=queue, state=state)
    JobFactory.create_batch(5, queue=fifo_queue)

    assert services.warn_backlogs() == {}
    assert warned == []
