"""Which jobs an operation changed, and which operations changed a job."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.engine import paging
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Operation, OperationBatch
from django_jobqueue.selection import Selection
from django_jobqueue.services import operations
from django_jobqueue.states import JobState
from tests.factories import JobFactory
from tests.services.lives import sent

pytestmark = pytest.mark.django_db


@pytest.fixture
def steps(monkeypatch):
    """Two jobs at a time, read in narrow windows."""
    monkeypatch.setattr(operations, "AT_ONCE", 2)
    monkeypatch.setattr(paging, "CHEAP", 0)
    monkeypatch.setattr(paging, "NARROW", 2)


def retried(queue, number, **fields):
    jobs = [JobFactory(queue=queue, state=JobState.FAILED, **fields) for _ in range(number)]
    operation = services.begin_operation("retry", selection={"handler": fields.get("name")}, operator="olga")
    return jobs, services.advance_operation(operation, seconds=50)


def test_the_jobs_of_an_operation_on_filters_are_those_that_it_changed(queue, steps):
    JobFactory(queue=queue, name="ship")
    jobs, operation = retried(queue, 5, name="ship")
    others, other = retried(queue, 3, name="mail")

    assert list(Job.objects.selected(Selection(operation=operation.pk)).order_by("seq")) == jobs
    assert list(Job.objects.selected(Selection(operation=other.pk)).order_by("seq")) == others
    assert OperationBatch.objects.filter(operation=operation).count() == 3


def test_they_are_read_page_by_page_in_both_directions(queue, steps):
    retried(queue, 3, name="mail")
    jobs, operation = retried(queue, 7, name="ship")
    for _ in range(20):
        JobFactory(queue=queue)
    wanted = Job.objects.selected(Selection(operation=operation.pk))

    newest = paging.look(wanted, 3)
    older = paging.look(wanted, 3, before=newest.place)
    newer = paging.look(wanted, 3, after=older.place)

    assert newest.jobs == jobs[:3:-1]
    assert older.jobs == jobs[3:0:-1]
    assert newer.jobs == jobs[2:5]
    assert paging.count(wanted).number == 7
    assert paging.look(wanted, 3, before=jobs[0].seq).jobs == []
    assert paging.look(wanted, 3, after=jobs[-1].seq + 5).jobs == []


def test_another_operation_takes_exactly_these_jobs(queue, steps):
    jobs, operation = retried(queue, 5, name="ship")
    spared = JobFactory(queue=queue, name="ship")

    cancelled = services.begin_operation("cancel", selection={"operation": operation.pk}, operator="ann")
    cancelled = services.advance_operation(cancelled, seconds=50)

    assert (cancelled.moved, cancelled.refused) == (5, 0)
    assert set(Job.objects.in_state("stopped")) == set(jobs)
    assert Job.objects.get(pk=spared.pk).state == "created"


def test_the_operations_of_a_job_are_found_with_and_without_filters(queue, steps):
    (job, *_), operation = retried(queue, 5, name="ship")
    retried(queue, 3, name="mail")
    services.cancel(job.pk, operator="ann")
    services.retry([uuid7()], operator="ann")

    found = Operation.objects.of_job(job.pk).order_by("pk")

    assert [each.verb for each in found] == ["retry", "cancel"]
    assert found[0].pk == operation.pk


def test_an_operation_on_more_jobs_than_a_batch_has_several(queue, monkeypatch):
    monkeypatch.setattr("django_jobqueue.engine.records.AT_ONCE", 2)
    jobs = [sent(queue) for _ in range(5)]

    services.cancel([job.pk for job in jobs], operator="ann")

    assert OperationBatch.objects.count() == 3
    assert set(Job.objects.changed_by(Operation.objects.get().pk)) == set(jobs)


@pytest.mark.parametrize("outside", ({"negated": True}, {"connector": "OR"}))
def test_bounds_that_do_not_hold_for_every_job_do_not_bound_the_batches(queue, steps, outside):
    from django.db.models import Q

    jobs, operation = retried(queue, 5, name="ship")
    bounds = Q(seq__gt=jobs[3].seq, seq__lte=jobs[4].seq)
    condition = ~bounds if "negated" in outside else bounds | Q(seq__lte=jobs[1].seq)

    found = Job.objects.changed_by(operation.pk).filter(condition).order_by("seq")

    assert list(found) == (jobs[:4] if "negated" in outside else [*jobs[:2], jobs[4]])


def test_jobs_that_were_deleted_have_a_record(queue):
    job = JobFactory(queue=queue, state=JobState.COMPLETED)

    services.delete(job.pk, operator="ann", reason="by request")

    (operation,) = Operation.objects.of_job(job.pk)
    assert (operation.verb, operation.reason) == ("delete", "by request")
