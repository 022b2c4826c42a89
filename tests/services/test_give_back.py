"""Returning jobs to the queue without using up a retry: a worker that drains, a snooze."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidTransition
from django_jobqueue.states import Hold, JobState

from .lives import check_lawful, claimed, holds, in_the_past, job_in, now, refused, sent


@pytest.mark.parametrize("policy", ("queue", "fifo_queue", "singleton_queue", "stately_queue", "exclusive_queue"))
def test_a_job_goes_back_uncharged_and_says_why(policy, request):  # B34 B11
    queue = request.getfixturevalue(policy)
    job = claimed(queue, worker="ann")

    services.give_back(job, "worker ann drains")

    stored = now(job)
    assert (stored.state, stored.retry_count, stored.last_retry_at) == ("retry", 0, None)
    assert (stored.error, stored.reason) == ("worker ann drains", "returned")
    assert holds("ann") == set()
    check_lawful(job)
    (again,) = services.fetch(queue.name)
    assert (again.pk, again.attempt) == (job.pk, 2)


def test_a_job_that_goes_back_without_a_text_has_none_and_is_due_from_now_on(queue):
    job = claimed(queue)
    services.fail(job, "boom", retry_after=0)
    (again,) = services.fetch(queue.name)
    in_the_past(job, "start_after")

    services.give_back(again, "")

    assert now(job).error == ""
    assert timezone.now() - now(job).start_after < timedelta(minutes=1)


def test_a_job_goes_back_for_less_than_a_second_too(queue):
    job = claimed(queue)

    services.give_back(job, "busy", delay=0.5)

    assert now(job).hold == Hold.UNTIL


def test_a_job_that_went_back_keeps_its_place(queue):  # B6 B34
    first, second = sent(queue), sent(queue)
    (held,) = services.fetch(queue.name)
    services.give_back(held, "drained")

    assert services.fetch(queue.name, 2) == [first, second]


def test_a_job_that_snoozes_is_not_fetched_before_its_time(queue):  # B34
    job = claimed(queue)

    services.give_back(job, "later", delay=3600)

    assert services.fetch(queue.name) == []
    assert timedelta(minutes=59) < now(job).start_after - timezone.now() < timedelta(minutes=61)
    in_the_past(job, "start_after", interval="2 hours")
    assert services.fetch(queue.name) == [job]


@pytest.mark.parametrize("delay", (None, 3600))
def test_a_job_that_went_back_still_blocks_its_key(fifo_queue, delay):  # B34
    job = claimed(fifo_queue, singleton_key="k")
    sent(fifo_queue, singleton_key="k")

    services.give_back(job, "drained", delay=delay)

    assert services.fetch(fifo_queue.name, 10) == ([] if delay else [job])


def test_going_back_costs_no_retry_however_often(queue):  # B34 I6
    job = claimed(queue, retry_limit=0)
    for _ in range(5):
        services.give_back(job, "drained")
        (job,) = services.fetch(queue.name)

    assert (job.attempt, now(job).retry_count) == (6, 0)


def test_a_stately_job_whose_place_is_taken_cannot_go_back(stately_queue):  # B34 B31
    waiting = claimed(stately_queue, singleton_key="k")
    services.fail(waiting, "boom", retry_after=3600)
    job = claimed(stately_queue, singleton_key="k")

    services.give_back(job, "drained")

    assert (now(job).state, now(job).reason) == ("failed", "retry_taken")
    assert now(waiting).state == "retry"


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.ACTIVE}))
def test_only_an_active_job_can_go_back(queue, state):  # R312 B34
    job = job_in(state, queue)

    with refused(InvalidTransition) as caught:
        services.give_back(job.pk, "drained")

    assert (caught.value.state, caught.value.wanted) == (state, "retry")
