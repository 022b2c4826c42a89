"""Counts, and that looking changes nothing."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobqueue import services
from django_jobqueue.exceptions import JobNotFound
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job
from django_jobqueue.states import FINAL, JobState

from .lives import claimed, job_in, now, sent, snapshot


@pytest.fixture
def one_in_each_state(queue):
    return {state: job_in(state, queue, tags=["red", state]) for state in JobState}


def test_each_count_holds_its_states(queue, one_in_each_state):  # R178 R179 R180 R181 R182 R183
    found = services.stats(queue.name)

    assert found.total == len(JobState)
    assert (found.pending, found.running, found.cancelling, found.completed) == (1, 1, 1, 1)
    assert found.failed == 2  # retry and unknown_retry
    assert found.stopped == len(FINAL) - 1
    assert found.by_state == dict.fromkeys(JobState, 1)
    assert found["expired"] == 1


@pytest.mark.parametrize("state", list(JobState))
def test_the_counts_add_up_to_the_total(queue, state):  # R178 I8
    for _ in range(2):
        job_in(state, queue)
    sent(queue)

    found = services.stats()

    parts = (found.pending, found.running, found.failed, found.completed, found.stopped, found.cancelling)
    assert sum(parts) == found.total == 3


def test_the_tags_asked_for_are_told(queue):  # R177
    assert services.stats(tags=["b", "a"]).tags == ("b", "a")
    assert services.stats().tags == ()


def test_only_jobs_with_all_the_tags_are_counted(queue, one_in_each_state):  # R294 R138
    sent(queue, tags=["red", "Active"])
    sent(queue)

    assert services.stats(tags=["active", "red"]).by_state[JobState.ACTIVE] == 1
    assert services.stats(tags=["active", "red"]).total == 1
    assert services.stats(tags=["red"]).total == len(JobState) + 1
    assert services.stats(tags=["Red"]).total == 0


def test_without_tags_and_queue_all_jobs_are_counted(queue, short_queue):  # R295
    sent(queue, tags=["red"])
    sent(short_queue)

    assert services.stats().total == 2
    assert services.stats(tags=[]).total == 2
    assert services.stats(short_queue.name).total == 1


def test_an_empty_table_has_zeros(queue):  # R295
    found = services.stats(queue.name)

    assert (found.total, found.retries, found.oldest_age, found.average_completion) == (0, 0, None, None)
    assert found.by_state == dict.fromkeys(JobState, 0)


def test_retries_are_summed_over_all_states(queue):  # R184
    job = claimed(queue, tags=["red"])
    services.fail(job, "boom")
    (again,) = services.fetch(queue.name)
    services.fail(again, "boom")
    other = claimed(queue, priority=10**6)
    services.fail(other, "boom")

    assert services.stats().retries == 3
    assert services.stats(tags=["red"]).retries == 2


def test_counting_reads_only_and_by_aggregation(queue, one_in_each_state):  # R296
    before = snapshot()

    with CaptureQueriesContext(connection) as captured:
        services.stats()

    (statement,) = captured.captured_queries
    assert "GROUP BY" in statement["sql"]
    assert snapshot() == before


def test_a_change_of_state_is_seen_by_get_job_and_stats(queue):  # R316
    job = sent(queue)
    seen = [(now(job).state, services.stats().by_state[JobState.CREATED])]
    (held,) = services.fetch(queue.name)
    seen.append((now(job).state, services.stats().running))
    services.complete(held)
    seen.append((now(job).state, services.stats().completed))

    assert seen == [("created", 1), ("active", 1), ("completed", 1)]


@pytest.mark.parametrize("state", list(JobState))
def test_get_job_returns_the_whole_record_and_changes_nothing(queue, state):  # R151 R291 R293
    job = job_in(state, queue, tags=["t"])
    before = snapshot()

    with CaptureQueriesContext(connection) as captured:
        found = services.get_job(str(job.pk))
        values = {field.attname: getattr(found, field.attname) for field in Job._meta.concrete_fields}

    assert len(captured) == 1  # nothing had to be loaded besides
    assert values == Job.objects.filter(pk=job.pk).values().get()
    assert snapshot() == before


def test_get_job_of_an_unknown_id_is_an_error(queue, short_queue):  # R292 R313
    job = sent(queue)

    with pytest.raises(JobNotFound):
        services.get_job(uuid7())
    with pytest.raises(JobNotFound):
        services.get_job(job.pk, queue=short_queue.name)
    assert services.get_job(job.pk, queue=queue.name) == job
