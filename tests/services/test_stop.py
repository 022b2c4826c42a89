"""Stopping for good: stop, stop and count a retry, unknown outcomes, answers to a cancellation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidTransition, JobNotFound
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.past import rewrite

from .lives import check_lawful, claimed, holds, job_in, now, refused, sent

STOPPABLE = [JobState.ACTIVE, JobState.CANCELLING, JobState.UNKNOWN_RETRY]


@pytest.mark.parametrize("state", STOPPABLE)
def test_stop_ends_a_started_job(queue, state):  # R157 R169 R257 R258 B13 I4
    job = job_in(state, queue)

    services.stop(job.pk, "enough")

    stored = now(job)
    assert (stored.state, stored.error, stored.retry_count) == ("stopped", "enough", 0)
    assert stored.finalized_at is not None
    check_lawful(job)


def test_a_stop_may_be_without_a_message(queue):  # R256
    job = claimed(queue)

    services.stop(job)

    assert (now(job).state, now(job).error) == ("stopped", "")


def test_stop_keeps_who_had_it_and_frees_capacity(queue):  # R162 R163 R257 I5
    job = claimed(queue, worker="ann")

    services.stop(job)

    assert (now(job).assignee, now(job).assigned_at) == ("ann", job.assigned_at)
    assert holds("ann") == set()


def test_a_stopped_job_is_never_fetched_again(queue):  # R169 R144
    services.stop(claimed(queue))

    assert services.fetch(queue.name, 10) == []


def test_stop_lets_the_next_of_a_key_go(fifo_queue):  # R257
    first = claimed(fifo_queue, singleton_key="k")
    second = sent(fifo_queue, singleton_key="k")
    assert services.fetch(fifo_queue.name) == []

    services.stop(first)

    assert services.fetch(fifo_queue.name) == [second]


def test_stop_with_retry_counts_one(queue):  # R161 R260 R261
    job = job_in(JobState.CANCELLING, queue)

    services.stop(job, "cancelled", count_retry=True)

    stored = now(job)
    assert (stored.state, stored.error, stored.retry_count) == ("stopped", "cancelled", 1)
    assert stored.last_retry_at is not None
    assert stored.finalized_at is not None
    check_lawful(job)


def test_stop_with_retry_keeps_who_had_it_and_frees_capacity(queue):  # R262 I5
    job = job_in(JobState.CANCELLING, queue, worker="ann")

    services.stop(job, count_retry=True)

    assert (now(job).assignee, now(job).assigned_at) == ("ann", job.assigned_at)
    assert holds("ann") == set()


@pytest.mark.parametrize(("limit", "raised"), ((0, 1), (3, 3), (None, None)))
def test_stop_with_retry_at_the_limit_raises_the_limit(queue, limit, raised):  # B37 R261 I6
    job = job_in(JobState.CANCELLING, queue, retry_limit=limit)

    services.stop(job, count_retry=True)

    assert (now(job).retry_count, now(job).retry_limit) == (1, raised)
    check_lawful(job)


def test_stop_without_a_retry_leaves_the_limit(queue):
    job = claimed(queue, retry_limit=0)

    services.stop(job)

    assert (now(job).retry_count, now(job).retry_limit) == (0, 0)


ENDS: list[Callable[[Job], object]] = [
    services.stop,
    lambda job: services.acknowledge_cancellation(job, was_executing=True),
]


@pytest.mark.parametrize("end", ENDS)
def test_crashes_of_a_job_that_its_worker_ended_are_forgotten(queue, end):
    job = job_in(JobState.CANCELLING, queue)
    rewrite(job, crashes=2)

    end(job)

    assert now(job).crashes == 0


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.CANCELLING}))
def test_stop_with_retry_is_only_for_what_is_being_cancelled(queue, state):  # R260
    job = job_in(state, queue)

    with refused(InvalidTransition) as caught:
        services.stop(job.pk, count_retry=True)

    assert (caught.value.state, caught.value.wanted) == (state, "stopped")


@pytest.mark.parametrize("state", STOPPABLE)
def test_an_unknown_outcome_ends_a_job(queue, state):  # R157 R173 R263 R265 B17 I4
    job = job_in(state, queue)

    services.mark_unknown_stopped(job.pk, "who knows")

    stored = now(job)
    assert (stored.state, stored.error) == ("unknown_stopped", "who knows")
    assert stored.finalized_at is not None
    check_lawful(job)
    assert services.fetch(queue.name, 10) == []


def test_an_unknown_outcome_keeps_who_had_it_and_frees_capacity(queue):  # R264 I5
    job = claimed(queue, worker="ann")

    services.mark_unknown_stopped(job)

    assert (now(job).assignee, now(job).assigned_at) == ("ann", job.assigned_at)
    assert holds("ann") == set()


@pytest.mark.parametrize("verb", (services.stop, services.mark_unknown_stopped, services.complete))
def test_a_job_that_does_not_exist_is_an_error(db, verb):  # R246 R259 R266 R313
    id = uuid7()

    with refused(JobNotFound) as caught:
        verb(id)

    assert caught.value.job_ids == [id]


@pytest.mark.parametrize(("was_executing", "state"), ((True, JobState.STOPPED), (False, JobState.UNKNOWN_STOPPED)))
def test_an_answer_ends_the_cancellation(queue, was_executing, state):  # R278 R280 R281 R282 B12 B13
    job = job_in(JobState.CANCELLING, queue, worker="ann")

    services.acknowledge_cancellation(job, was_executing=was_executing)

    stored = now(job)
    assert stored.state == state
    assert stored.finalized_at is not None
    assert (stored.assignee, stored.assigned_at) == ("ann", job.assigned_at)
    assert holds("ann") == set()
    check_lawful(job)


@pytest.mark.parametrize("was_executing", (True, False))
@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.CANCELLING}))
def test_only_a_cancellation_can_be_answered(queue, state, was_executing):  # R279 R283
    job = job_in(state, queue)

    with refused(InvalidTransition) as caught:
        services.acknowledge_cancellation(job.pk, was_executing=was_executing)

    assert caught.value.state == state


def test_an_answer_lets_the_next_of_a_key_go(fifo_queue):  # R278 R280
    first = job_in(JobState.CANCELLING, fifo_queue, singleton_key="k")
    second = sent(fifo_queue, singleton_key="k")
    assert services.fetch(fifo_queue.name) == []

    services.acknowledge_cancellation(first, was_executing=True)

    assert services.fetch(fifo_queue.name) == [second]
