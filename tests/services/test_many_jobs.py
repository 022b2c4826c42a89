"""Operations over many jobs: a bit at a time, on record, able to go on."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.engine import paging
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.models import Job, Operation
from django_jobqueue.services import operations
from django_jobqueue.states import JobState
from tests.factories import JobFactory
from tests.past import reread

pytestmark = pytest.mark.django_db


@pytest.fixture
def bits(monkeypatch):
    """Two jobs at a time."""
    monkeypatch.setattr(operations, "AT_ONCE", 2)


def failed(queue, number):
    return [JobFactory(queue=queue, state=JobState.FAILED) for _ in range(number)]


def finished(operation, jobs=None):
    return services.advance_operation(operation, jobs, seconds=50)


def begun(verb, **options):
    return services.begin_operation(verb, operator="olga", **{"reason": "because", **options})


def test_a_named_selection_is_done_and_recorded(queue):
    jobs = failed(queue, 3)
    done = JobFactory(queue=queue, state=JobState.COMPLETED)

    operation = finished(begun("retry", ids=[job.pk for job in (*jobs, done)]))

    assert [reread(job).state for job in jobs] == ["retry"] * 3
    assert (operation.state, operation.moved, operation.refused) == ("done", 3, 1)
    assert operation.details["refused"] == {str(done.pk): "it is completed"}
    assert (operation.operator, operation.reason) == ("olga", "because")
    assert operation.finished_at is not None
    assert Operation.objects.count() == 1


def test_a_filter_is_done_a_bit_at_a_time(queue, bits):
    failed(queue, 5)
    operation = begun("retry", selection={"query": "state=failed"})

    first = services.advance_operation(operation, Job.objects.all(), seconds=0)
    second = services.advance_operation(operation, Job.objects.all(), seconds=0)

    assert [(one.state, one.moved) for one in (first, second)] == [("running", 2), ("running", 4)]
    assert first.cursor
    assert second.cursor
    assert first.cursor["place"] < second.cursor["place"]
    last = finished(operation, Job.objects.all())
    assert (last.state, last.moved, last.refused) == ("done", 5, 0)
    assert not Job.objects.in_state("failed").exists()


def test_what_is_sent_later_is_not_meant(queue, bits):
    failed(queue, 3)
    operation = begun("retry", selection={})
    late = failed(queue, 1)[0]

    operation = finished(operation, Job.objects.all())

    assert (operation.state, operation.moved) == ("done", 3)
    assert reread(late).state == "failed"


def test_a_stopped_operation_rests_until_it_is_resumed(queue, bits):
    failed(queue, 5)
    operation = begun("retry", selection={})
    services.advance_operation(operation, Job.objects.all(), seconds=0)

    assert services.stop_operation(operation)
    rested = finished(operation, Job.objects.all())
    assert (rested.state, rested.moved) == ("stopped", 2)
    assert not services.stop_operation(operation)
    assert services.resume_operation(operation)
    assert finished(operation, Job.objects.all()).moved == 5
    assert not services.resume_operation(operation)


@pytest.mark.django_db(transaction=True)
def test_two_who_advance_it_take_turns_and_do_nothing_twice(queue, bits, race):  # fault 70
    failed(queue, 20)
    operation = begun("retry", selection={})

    race(3, lambda: services.advance_operation(operation, Job.objects.all(), seconds=50))

    operation.refresh_from_db()
    assert (operation.state, operation.moved, operation.refused) == ("done", 20, 0)


@pytest.mark.django_db(transaction=True)
def test_a_bit_that_fails_leaves_no_trace_and_goes_on_later(queue, bits, monkeypatch):
    jobs = failed(queue, 4)
    operation = begun("retry", selection={})
    services.advance_operation(operation, Job.objects.all(), seconds=0)

    def break_down(*args, **kwargs):
        raise RuntimeError("the process dies")

    with monkeypatch.context() as patched:
        patched.setattr(operations, "F", break_down)  # after the jobs were moved, before it is noted
        with pytest.raises(RuntimeError):
            services.advance_operation(operation, Job.objects.all(), seconds=0)
    assert [reread(job).state for job in jobs] == ["retry", "retry", "failed", "failed"]

    assert finished(operation, Job.objects.all()).moved == 4


def test_a_skip_keeps_who_and_why_with_each_job(fifo_queue):
    job = JobFactory(queue=fifo_queue, singleton_key="a", state=JobState.FAILED)

    finished(begun("skip", selection={}), Job.objects.all())

    assert (reread(job).state, reread(job).note) == ("stopped", "olga: because")


def test_a_skip_needs_a_reason(queue):
    with pytest.raises(InvalidOption, match="reason"):
        begun("skip", ids=[], reason=" ")
    assert not Operation.objects.exists()


def test_an_unknown_verb_is_refused(db):
    with pytest.raises(InvalidOption, match="expected one of retry, skip, cancel, delete, got 'purge'"):
        begun("purge", ids=[])


def test_cancel_and_delete_take_what_they_can(queue):
    waiting, done = JobFactory(queue=queue), JobFactory(queue=queue, state=JobState.COMPLETED)
    both = [waiting.pk, done.pk]

    cancelled = finished(begun("cancel", ids=both))
    assert (cancelled.moved, cancelled.details["refused"]) == (1, {str(done.pk): "it is completed"})
    other = JobFactory(queue=queue)
    deleted = finished(begun("delete", ids=[*both, other.pk]))
    assert (deleted.moved, deleted.details["refused"]) == (2, {str(other.pk): "it is created"})
    assert list(Job.objects.all()) == [other]


def test_a_filter_needs_a_queryset(queue):
    with pytest.raises(InvalidOption, match="queryset"):
        finished(begun("retry", selection={}))


def test_an_operation_over_nothing_is_done_at_once(db):
    assert finished(begun("retry", selection={}), Job.objects.all()).state == "done"


def test_retry_with_other_data_keeps_what_it_was(queue):
    job = JobFactory(queue=queue, state=JobState.FAILED, data={"card": "old"})

    services.retry(job, data={"card": "new"}, operator="olga")

    (operation,) = Operation.objects.all()
    assert operation.details["data"] == {str(job.pk): {"before": {"card": "old"}, "after": {"card": "new"}}}


def test_windows_are_used_however_sparse(queue, bits, monkeypatch):
    monkeypatch.setattr(paging, "CHEAP", 0)
    monkeypatch.setattr(paging, "NARROW", 4)
    failed(queue, 7)
    JobFactory(queue=queue)

    assert finished(begun("delete", selection={}), Job.objects.all()).moved == 7
