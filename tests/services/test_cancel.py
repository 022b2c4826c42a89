"""Cancelling: by ids, by tags, or both."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Operation
from django_jobqueue.states import FINAL, JobState

from .lives import check_lawful, claimed, holds, job_in, now, refused, sent, snapshot

BECOMES = {
    JobState.CREATED: JobState.CANCELLED,
    JobState.ACTIVE: JobState.CANCELLING,
    JobState.RETRY: JobState.STOPPED,
    JobState.UNKNOWN_RETRY: JobState.STOPPED,
}
FORCED = BECOMES | {JobState.ACTIVE: JobState.STOPPED, JobState.CANCELLING: JobState.STOPPED}


@pytest.mark.parametrize("state", BECOMES)
def test_cancel_moves_each_state_to_its_own(queue, state):  # R157 R170 R172 R270 R271 R272 R273 B12 B13
    job = job_in(state, queue)

    result = services.cancel(job.pk)

    assert now(job).state == BECOMES[state]
    assert (result.cancelled, result.unknown, result.previous) == ([job.pk], [], {job.pk: state})
    check_lawful(job)
    assert services.fetch(queue.name, 10) == []


@pytest.mark.parametrize("state", FORCED)
def test_force_goes_straight_to_the_end(queue, state):  # B12
    job = job_in(state, queue)

    assert services.cancel(job.pk, force=True).cancelled == [job.pk]

    assert now(job).state == FORCED[state]
    check_lawful(job)


def test_cancelling_again_changes_nothing_and_counts_as_cancelled(queue):  # R274
    job = job_in(JobState.CANCELLING, queue)
    before = snapshot()

    result = services.cancel(job.pk)

    assert (result.cancelled, result.unknown) == ([job.pk], [])
    assert snapshot() == before


@pytest.mark.parametrize("state", sorted(FINAL))
@pytest.mark.parametrize("force", (False, True))
def test_a_final_job_is_reported_as_unknown_and_not_changed(queue, state, force):  # R275 R276
    job = job_in(state, queue)
    before = snapshot()

    result = services.cancel(job.pk, force=force)

    assert (result.cancelled, result.unknown) == ([], [job.pk])
    assert snapshot() == before


def test_an_id_that_does_not_exist_is_reported_as_unknown(db):  # R275
    id = uuid7()

    assert services.cancel([id]).unknown == [id]


def test_final_and_unknown_jobs_do_not_stop_the_others(queue):  # R275 R276 R277
    done, missing, waiting = job_in(JobState.COMPLETED, queue), uuid7(), sent(queue)

    result = services.cancel([done.pk, missing, waiting.pk])

    assert (result.cancelled, result.unknown) == ([waiting.pk], [done.pk, missing])
    assert now(waiting).state == "cancelled"


def test_ids_and_tags_mean_all_of_both(queue):  # R268
    tagged, named = sent(queue, tags=["red"]), sent(queue)
    both, neither = sent(queue, tags=["red"]), sent(queue, tags=["blue"])

    result = services.cancel([named.pk, both.pk], tags=["red"])

    assert set(result.cancelled) == {tagged.pk, named.pk, both.pk}
    assert len(result.cancelled) == 3
    assert now(neither).state == "created"


def test_of_several_tags_a_job_must_carry_all(queue):  # R269 R138
    all_of_them = sent(queue, tags=["a", "b", "c"])
    sent(queue, tags=["a"])
    sent(queue)

    assert services.cancel(tags=["b", "a"]).cancelled == [all_of_them.pk]


def test_tags_also_report_final_jobs(queue):  # R275
    done = job_in(JobState.COMPLETED, queue, tags=["red"])

    assert services.cancel(tags=["red"]).unknown == [done.pk]


def test_tags_reach_every_queue_unless_one_is_named(queue, short_queue):  # R268
    here, there = sent(queue, tags=["red"]), sent(short_queue, tags=["red"])

    assert services.cancel(tags=["red"], queue=queue.name).cancelled == [here.pk]
    assert services.cancel(tags=["red"]).cancelled == [there.pk]


def test_cancel_takes_a_queryset_and_jobs(queue):  # R268
    jobs = [sent(queue) for _ in range(3)]

    assert services.cancel(Job.objects.filter(pk=jobs[0].pk)).cancelled == [jobs[0].pk]
    assert set(services.cancel(jobs[1:]).cancelled) == {jobs[1].pk, jobs[2].pk}
    assert services.cancel(Job.objects.none()).cancelled == []


def test_nothing_selected_is_an_error(queue):  # B38
    sent(queue)

    with refused(InvalidOption):
        services.cancel()
    with refused(InvalidOption):
        services.cancel([], tags=[])


def test_a_job_that_is_being_cancelled_waits_for_its_worker(queue):  # R172 R278
    job = claimed(queue, worker="ann")
    services.cancel(job.pk)

    assert services.fetch(queue.name, 10) == []
    assert holds("ann") == {job.pk}
    assert now(job).cancel_requested_at is not None
    assert services.touch(job) == JobState.CANCELLING


def test_many_are_cancelled_by_as_many_statements_as_few(queue):  # R277
    def statements(n: int) -> int:
        services.send_many(queue.name, [{"tags": [f"of {n}"]}] * n)
        with CaptureQueriesContext(connection) as captured:
            assert len(services.cancel(tags=[f"of {n}"]).cancelled) == n
        return len(captured)

    assert statements(2) == statements(150)


@pytest.mark.django_db(transaction=True)
def test_all_of_a_cancel_happens_in_one_transaction(queue):  # R277 R267
    ids = services.send_many(queue.name, [{}] * 20)

    services.cancel([id for id in ids if id])

    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT xmin::text, state FROM jobqueue_job")
        found = cursor.fetchall()
    assert [state for _, state in found] == ["cancelled"]


@pytest.mark.parametrize("state", (JobState.CREATED, JobState.RETRY, JobState.UNKNOWN_RETRY))
def test_cancelling_the_head_lets_the_next_of_its_key_go(fifo_queue, state):  # R270 R272 R273
    head = job_in(state, fifo_queue, singleton_key="k")
    after = sent(fifo_queue, singleton_key="k")

    services.cancel(head.pk)

    assert services.fetch(fifo_queue.name, 10) == [after]


def test_an_operators_cancel_is_recorded(queue):
    job, done = sent(queue), job_in(JobState.COMPLETED, queue)

    services.cancel([job.pk, done.pk], operator="ann")

    operation = Operation.objects.get()
    assert (operation.verb, operation.operator, operation.moved, operation.refused) == ("cancel", "ann", 1, 1)
    assert operation.selection == {"ids": [str(job.pk)]}
