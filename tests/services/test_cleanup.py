"""Old jobs are deleted, and never one that blocks an ordered key or waits behind one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import BLOCKING, DEAD, ELIGIBLE, FINAL, RETRYING, RUNNING, Hold, JobState
from tests.factories import JobFactory
from tests.past import ago, rewrite

from .lives import sent

pytestmark = pytest.mark.django_db

SUCCESSFUL_OR_STOPPED = FINAL - DEAD


def ended(queue: Queue, state: str, **options: object) -> Job:
    """A job that ended long ago, by its verbs' rules of when it goes."""
    job = JobFactory(queue=queue, state=state, **options)
    if job.delete_at is not None:
        rewrite(job, delete_at=ago(seconds=1), finalized_at=ago(days=30))
    return job


def waited(queue: Queue, state: str = JobState.CREATED, **options: object) -> Job:
    """A job that waits since longer than two weeks."""
    return rewrite(JobFactory(queue=queue, state=state, **options), created_at=ago(days=15), start_after=ago(days=15))


def left() -> set[object]:
    return set(Job.objects.values_list("pk", flat=True))


# ------------------------------------------------------------------------------------------------- what ended


def test_completed_jobs_go_after_their_time(queue):  # R120 R361 B14
    sent(queue), sent(queue)
    old, fresh = services.fetch(queue.name, 2)
    for job in (old, fresh):
        services.complete(job)
    stored = Job.objects.get(pk=old.pk)
    assert stored.finalized_at is not None
    assert stored.delete_at == stored.finalized_at + timedelta(days=7)
    rewrite(old, delete_at=ago(seconds=1))

    assert services.cleanup() == {queue.name: 1}
    assert left() == {fresh.pk}


def test_failed_jobs_go_after_their_time(queue):  # R335 R361 B14
    sent(queue, retry_limit=0, delete_failed_after_seconds=100)
    (job,) = services.fetch(queue.name)
    services.fail(job, "boom")
    stored = Job.objects.get(pk=job.pk)
    assert stored.finalized_at is not None
    assert stored.delete_at == stored.finalized_at + timedelta(seconds=100)
    assert services.cleanup() == {}

    rewrite(job, delete_at=ago(seconds=1))

    assert services.cleanup() == {queue.name: 1}


def test_jobs_that_are_to_be_kept_are_never_deleted(queue):  # R121
    sent(queue, delete_after_seconds=0), sent(queue, retry_limit=0, delete_failed_after_seconds=0)
    done, failed = services.fetch(queue.name, 2)
    services.complete(done)
    services.fail(failed, "boom")
    Job.objects.update(finalized_at=ago(days=9999), created_at=ago(days=9999), start_after=ago(days=9999))

    assert services.cleanup() == {}
    assert left() == {done.pk, failed.pk}


@pytest.mark.parametrize("state", sorted(FINAL))
def test_every_end_is_cleaned_up(queue, state):  # R361
    ended(queue, state)

    assert services.cleanup() == {queue.name: 1}


@pytest.mark.parametrize("state", sorted(set(JobState) - FINAL))
def test_what_has_not_ended_is_kept(queue, state):  # R361
    job = JobFactory(queue=queue, state=state)

    assert services.cleanup() == {}
    assert left() == {job.pk}


def test_cleanup_counts_per_queue_and_can_be_limited_to_one(queue, fifo_queue):  # R361
    for _ in range(3):
        ended(queue, JobState.COMPLETED)
    ended(fifo_queue, JobState.COMPLETED)

    assert services.cleanup(queue=fifo_queue.name) == {fifo_queue.name: 1}
    assert services.cleanup() == {queue.name: 3}


def test_many_old_jobs_are_all_deleted(queue):  # R361
    JobFactory.create_batch(450, queue=queue, state=JobState.COMPLETED)
    Job.objects.update(delete_at=ago(seconds=1))

    assert services.cleanup() == {queue.name: 450}


def test_the_archive_keeps_finished_jobs(queue, settings):
    settings.JOBQUEUE = {"ARCHIVE": True}
    job = ended(queue, JobState.COMPLETED)
    waited(queue)

    assert services.cleanup() == {queue.name: 1}
    assert left() == {job.pk}


# ------------------------------------------------------------------------------------------------- what waited


@pytest.mark.parametrize("state", sorted(ELIGIBLE))
def test_jobs_that_waited_too_long_are_deleted(queue, state):  # R118
    waited(queue, state)
    fresh = JobFactory(queue=queue, state=state)

    assert services.cleanup() == {queue.name: 1}
    assert left() == {fresh.pk}


def test_waiting_is_counted_from_the_time_a_job_may_start(queue):  # R118
    job = JobFactory(queue=queue, retention_seconds=60)
    rewrite(job, created_at=ago(days=99), start_after=ago(seconds=30))

    assert services.cleanup() == {}
    rewrite(job, start_after=ago(seconds=61))
    assert services.cleanup() == {queue.name: 1}


def test_a_running_job_is_never_too_old(queue):  # R118
    for state in RUNNING:
        waited(queue, state)

    assert services.cleanup() == {}


# --------------------------------------------------------------------------------------------- ordered keys


@pytest.mark.parametrize("state", sorted(BLOCKING))
def test_a_row_that_blocks_an_ordered_key_is_never_deleted(fifo_queue, state):  # R004 B14
    job = waited(fifo_queue, state)
    rewrite(job, delete_at=ago(days=1))

    assert services.cleanup() == {}
    assert services.cleanup(ttl=1) == {}
    assert left() == {job.pk}


def test_a_dead_ordered_job_has_no_time_to_go_until_it_is_skipped(fifo_queue):  # B14
    sent(fifo_queue, singleton_key="a", retry_limit=0)
    (job,) = services.fetch(fifo_queue.name)
    services.fail(job, "boom")
    assert Job.objects.get().delete_at is None

    services.skip(job.pk, reason="no")

    assert Job.objects.get().delete_at is not None


@pytest.mark.parametrize("name", ("fifo_queue", "singleton_queue", "stately_queue"))
def test_what_waits_for_a_lane_waits_until_a_person_decides(request, name):  # B36
    queue = request.getfixturevalue(name)
    blocker = JobFactory(queue=queue, state=JobState.ACTIVE, singleton_key="a")
    job = waited(queue, singleton_key="a", hold=Hold.LANE)

    assert services.cleanup() == {}
    assert left() == {blocker.pk, job.pk}


@pytest.mark.parametrize("hold", (None, Hold.UNTIL, Hold.LANE))
@pytest.mark.parametrize("state", sorted(DEAD))
def test_what_waits_behind_a_blocked_key_is_kept_though_no_fetch_has_looked_at_it(fifo_queue, state, hold):  # B36
    blocker = JobFactory(queue=fifo_queue, state=state, singleton_key="a")
    job = waited(fifo_queue, singleton_key="a", hold=hold)

    assert services.cleanup() == {}
    assert left() == {blocker.pk, job.pk}


def test_a_head_that_waited_too_long_goes_and_the_next_takes_its_place(fifo_queue):  # R118
    waited(fifo_queue, singleton_key="a")
    behind = JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)

    assert services.cleanup() == {fifo_queue.name: 1}

    assert services.fetch(fifo_queue.name) == [behind]


@pytest.mark.parametrize("state", sorted(RETRYING))
def test_a_retry_of_an_unordered_queue_may_grow_too_old(singleton_queue, state):  # R118
    waited(singleton_queue, state)

    assert services.cleanup() == {singleton_queue.name: 1}


# ---------------------------------------------------------------------------------------------------- by age


def test_with_an_age_only_completed_jobs_go(queue):  # B14
    for state in JobState:
        job = JobFactory(queue=queue, state=state)
        if state in FINAL:
            rewrite(job, finalized_at=ago(seconds=61), created_at=ago(days=99))
    fresh = JobFactory(queue=queue, state=JobState.COMPLETED)

    assert services.cleanup(ttl=60) == {queue.name: 1}
    assert Job.objects.filter(state=JobState.COMPLETED).get() == fresh
    assert Job.objects.count() == len(JobState)


@pytest.mark.parametrize("ttl", (0, -1, True, "60", float("nan"), timedelta(0)))
def test_an_age_is_more_than_zero(queue, ttl):  # B14
    ended(queue, JobState.COMPLETED)

    with pytest.raises(InvalidOption, match="ttl"):
        services.cleanup(ttl=ttl)
    assert Job.objects.count() == 1


# ---------------------------------------------------------------------------------------------- what was archived


def test_an_archived_job_goes_only_if_it_is_still_what_was_archived(queue, fifo_queue):
    ended = timezone.now() - timedelta(days=1)
    job = JobFactory(queue=queue, state=JobState.FAILED, finalized_at=ended)
    blocking = JobFactory(queue=fifo_queue, state=JobState.FAILED, finalized_at=ended)

    assert services.delete_archived(queue.name, [(job.pk, ended - timedelta(microseconds=1))]) == 0
    assert services.delete_archived(fifo_queue.name, [(blocking.pk, ended)]) == 0
    assert services.delete_archived("other", [(job.pk, ended)]) == 0
    assert left() == {job.pk, blocking.pk}

    assert services.delete_archived(queue.name, [(str(job.pk), ended)]) == 1
    assert left() == {blocking.pk}


def test_an_archived_job_without_its_time_is_refused(queue):
    with pytest.raises(InvalidOption, match="expected a datetime"):
        services.delete_archived(queue.name, [(JobFactory(queue=queue).pk, "yesterday")])  # type: ignore[list-item]
