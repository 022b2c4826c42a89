"""Looking: jobs, lists, counts and what happened per minute."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import TruncMinute

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, JobNotFound, QueueNotFound
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job
from django_jobqueue.states import DEAD, FINAL, JobState
from tests.factories import JobFactory
from tests.past import ago, reread, rewrite

from .lives import sent

pytestmark = pytest.mark.django_db


# ------------------------------------------------------------------------------------------------ jobs and lists


def test_a_job_can_be_looked_at_in_full(queue):  # R352 R358 R375
    sent(queue, {"n": 1}, retry_limit=3)
    (job,) = services.fetch(queue.name)
    services.fail(job, "boom")
    (job,) = services.fetch(queue.name, worker="w")

    found = services.get_job(job.pk)
    assert (found.queue_id, found.state, found.data) == (queue.name, JobState.ACTIVE, {"n": 1})
    assert (found.retry_count, found.retry_limit, found.error, found.assignee) == (1, 3, "boom", "w")
    services.complete(job, {"sum": 2})
    found = services.get_job(str(job.pk), queue=queue.name)
    assert (found.state, found.output) == (JobState.COMPLETED, {"sum": 2})


def test_a_job_that_does_not_exist_is_an_error(queue, fifo_queue):  # R358
    job = sent(queue)
    missing = uuid7()

    with pytest.raises(JobNotFound, match=str(missing)):
        services.get_job(missing)
    with pytest.raises(JobNotFound):
        services.get_job(job.pk, queue=fifo_queue.name)


def test_jobs_of_a_queue_are_listed_in_the_order_they_were_sent(queue, fifo_queue):  # R359
    jobs = [sent(queue, priority=priority) for priority in (0, 9, 5)]
    sent(fifo_queue, singleton_key="a")

    assert services.list_jobs(queue.name) == jobs
    assert services.list_jobs(queue.name, limit=2) == jobs[:2]
    assert services.list_jobs(queue.name, limit=2, offset=1) == jobs[1:]
    assert services.list_jobs(queue.name, offset=3) == []
    assert services.list_jobs(queue.name, limit=0) == []


def test_jobs_of_one_state_can_be_listed(queue):  # R359
    jobs = {state: JobFactory(queue=queue, state=state) for state in JobState}

    for state, job in jobs.items():
        assert services.list_jobs(queue.name, state) == [job]


def test_a_list_takes_only_what_makes_sense(queue):  # R359
    for wrong in ({"state": "done"}, {"limit": -1}, {"offset": -1}, {"limit": True}, {"limit": "5"}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            services.list_jobs(queue.name, **wrong)
    with pytest.raises(QueueNotFound):
        services.list_jobs("nothing")


def test_purge_removes_all_jobs_of_a_queue_or_of_one_state(queue, fifo_queue):  # R362
    for state in JobState:
        JobFactory(queue=queue, state=state)
    kept = JobFactory(queue=fifo_queue)

    assert services.purge(queue.name, JobState.FAILED) == 1
    assert not Job.objects.filter(queue=queue, state=JobState.FAILED).exists()
    assert services.purge(queue.name) == len(JobState) - 1
    assert list(Job.objects.all()) == [kept]


@pytest.mark.parametrize(
    ("state", "becomes"), ((JobState.CREATED, JobState.CANCELLED), (JobState.ACTIVE, JobState.CANCELLING))
)
def test_cancel_reaches_waiting_and_active_jobs_and_tells_what_they_were(queue, state, becomes):  # R356 R357 R378
    job = JobFactory(queue=queue, state=state)

    answer = services.cancel(job.pk)

    assert (answer.cancelled, answer.unknown, answer.previous) == ([job.pk], [], {job.pk: state})
    assert reread(job).state == becomes


@pytest.mark.parametrize("state", sorted(FINAL))
def test_cancel_says_that_it_did_not_reach_an_ended_job(queue, state):  # R356 R357
    job = JobFactory(queue=queue, state=state)

    answer = services.cancel(job.pk)

    assert (answer.cancelled, answer.unknown, answer.previous) == ([], [job.pk], {job.pk: state})


# ------------------------------------------------------------------------------------------------------- stats


def test_stats_count_the_jobs_of_each_state(queue, fifo_queue):  # R128 R327 R363 R364
    for number, state in enumerate(JobState, start=1):
        JobFactory.create_batch(number, queue=queue, state=state)
    JobFactory.create_batch(2, queue=fifo_queue)

    one, every = services.stats(queue.name), services.stats()

    assert one.by_state == {state: number for number, state in enumerate(JobState, start=1)}
    assert one["created"] == 1
    assert (one[JobState.EXPIRED], one["cancelled"]) == (8, 9)
    assert every["created"] == 3
    assert (one.total, every.total) == (66, 68)


def test_stats_and_the_queue_agree_and_are_counted_now(queue):  # R129 R337
    sent(queue)
    assert services.stats(queue.name)["created"] == services.get_queue(queue.name).created_count == 1  # type: ignore[attr-defined]

    services.fetch(queue.name)

    found, counted = services.get_queue(queue.name), services.stats(queue.name)
    assert counted.queue == found.name
    for state in JobState:
        assert getattr(found, f"{state}_count") == counted[state] == (1 if state == JobState.ACTIVE else 0)


def test_stats_tell_the_age_of_the_oldest_waiting_job(queue):  # R365
    assert services.stats(queue.name).oldest_age is None
    for minutes, state in ((5, JobState.CREATED), (9, JobState.RETRY), (99, JobState.COMPLETED)):
        rewrite(JobFactory(queue=queue, state=state), created_at=ago(minutes=minutes))

    age = services.stats(queue.name).oldest_age

    assert age is not None
    assert timedelta(minutes=9) <= age < timedelta(minutes=10)


def test_stats_tell_how_long_jobs_took_to_complete(queue):  # R365
    assert services.stats(queue.name).average_completion is None
    for seconds in (10, 30):
        job = JobFactory(queue=queue, state=JobState.COMPLETED)
        rewrite(job, started_at=ago(seconds=seconds), finalized_at=ago(seconds=0))
    failed = JobFactory(queue=queue, state=JobState.FAILED)
    rewrite(failed, started_at=ago(days=1))

    assert services.stats(queue.name).average_completion == timedelta(seconds=20)


def test_stats_of_a_queue_that_does_not_exist_are_an_error(db):  # R363
    with pytest.raises(QueueNotFound):
        services.stats("nothing")


# ---------------------------------------------------------------------------------------------------- activity


def test_activity_counts_per_minute_what_was_sent_completed_and_failed(queue):  # R327 R366
    for state, number in ((JobState.CREATED, 3), (JobState.COMPLETED, 2), (JobState.FAILED, 1), (JobState.EXPIRED, 1)):
        JobFactory.create_batch(number, queue=queue, state=state)
    Job.objects.update(created_at=ago(minutes=5))
    Job.objects.filter(state__in=[JobState.COMPLETED, *DEAD]).update(finalized_at=ago(minutes=2))
    times = Job.objects.filter(state=JobState.COMPLETED).values_list(
        TruncMinute("created_at"), TruncMinute("finalized_at")
    )
    sent_at, ended_at = times[0]

    found = services.activity(queue.name, minutes=10)

    assert [(one.minute, one.created, one.completed, one.failed) for one in found] == [
        (sent_at, 7, 0, 0),
        (ended_at, 0, 2, 2),
    ]


def test_activity_looks_back_only_as_far_as_it_is_told(queue):  # R366
    rewrite(JobFactory(queue=queue), created_at=ago(minutes=30))

    assert services.activity(queue.name, minutes=20) == []
    assert len(services.activity(queue.name, minutes=40)) == 1
    assert len(services.activity(queue.name)) == 1  # an hour


def test_activity_is_of_one_queue_or_of_all(queue, fifo_queue):  # R366
    JobFactory(queue=queue)
    JobFactory.create_batch(2, queue=fifo_queue)
    Job.objects.update(created_at=ago(minutes=1))

    assert [(one.queue, one.created) for one in services.activity(fifo_queue.name)] == [(fifo_queue.name, 2)]
    assert {(one.queue, one.created) for one in services.activity()} == {(queue.name, 1), (fifo_queue.name, 2)}


@pytest.mark.parametrize("minutes", (0, -5, True, "60", 1.5))
def test_activity_takes_a_number_of_minutes(queue, minutes):  # R366
    with pytest.raises(InvalidOption, match="minutes"):
        services.activity(queue.name, minutes=minutes)


def test_activity_of_a_queue_that_does_not_exist_is_an_error(db):  # R366
    with pytest.raises(QueueNotFound):
        services.activity("nothing")
