"""Operations over many jobs: a bit at a time, on record, able to go on."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_jobqueue import services
from django_jobqueue.engine import paging
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.maintenance import maintain
from django_jobqueue.models import Job, Operation
from django_jobqueue.selection import Selection
from django_jobqueue.services import operations
from django_jobqueue.states import JobState
from tests.factories import JobFactory
from tests.past import ago, left_alone, reread, rewrite_operation

pytestmark = pytest.mark.django_db


@pytest.fixture
def bits(monkeypatch):
    """Two jobs at a time."""
    monkeypatch.setattr(operations, "AT_ONCE", 2)


def failed(queue, number):
    return [JobFactory(queue=queue, state=JobState.FAILED) for _ in range(number)]


def finished(operation):
    return services.advance_operation(operation, seconds=50)


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
    operation = begun("retry", selection={"states": ["failed"]})

    first = services.advance_operation(operation, seconds=0)
    second = services.advance_operation(operation, seconds=0)

    assert [(one.state, one.moved) for one in (first, second)] == [("running", 2), ("running", 4)]
    assert first.cursor
    assert second.cursor
    assert first.cursor["place"] < second.cursor["place"]
    last = finished(operation)
    assert (last.state, last.moved, last.refused) == ("done", 5, 0)
    assert not Job.objects.in_state("failed").exists()


def test_what_is_sent_later_is_not_meant(queue, bits):
    failed(queue, 3)
    operation = begun("retry", selection={})
    late = failed(queue, 1)[0]

    operation = finished(operation)

    assert (operation.state, operation.moved) == ("done", 3)
    assert reread(late).state == "failed"


def test_a_stopped_operation_rests_until_it_is_resumed(queue, bits):
    failed(queue, 5)
    operation = begun("retry", selection={})
    services.advance_operation(operation, seconds=0)

    assert services.stop_operation(operation)
    rested = finished(operation)
    assert (rested.state, rested.moved) == ("stopped", 2)
    assert not services.stop_operation(operation)
    assert services.resume_operation(operation)
    assert finished(operation).moved == 5
    assert not services.resume_operation(operation)


@pytest.mark.django_db(transaction=True)
def test_two_who_advance_it_take_turns_and_do_nothing_twice(queue, bits, race):  # F70
    failed(queue, 20)
    operation = begun("retry", selection={})

    race(3, lambda: services.advance_operation(operation, seconds=50))

    operation.refresh_from_db()
    assert (operation.state, operation.moved, operation.refused) == ("done", 20, 0)


@pytest.mark.django_db(transaction=True)
def test_a_bit_that_fails_leaves_no_trace_and_goes_on_later(queue, bits, monkeypatch):
    jobs = failed(queue, 4)
    operation = begun("retry", selection={})
    services.advance_operation(operation, seconds=0)

    def break_down(*args, **kwargs):
        raise RuntimeError("the process dies")

    with monkeypatch.context() as patched:
        patched.setattr(operations, "F", break_down)  # after the jobs were moved, before it is noted
        with pytest.raises(RuntimeError):
            services.advance_operation(operation, seconds=0)
    assert [reread(job).state for job in jobs] == ["retry", "retry", "failed", "failed"]

    assert finished(operation).moved == 4


def test_a_skip_keeps_who_and_why_with_each_job(fifo_queue):
    job = JobFactory(queue=fifo_queue, singleton_key="a", state=JobState.FAILED)

    finished(begun("skip", selection={}))

    assert (reread(job).state, reread(job).note) == ("stopped", "olga: because")


def test_a_skip_needs_a_reason(queue):
    with pytest.raises(InvalidOption, match="reason"):
        begun("skip", ids=[], reason=" ")
    assert not Operation.objects.exists()


def test_an_unknown_verb_is_refused(db):
    with pytest.raises(InvalidOption, match="expected one of retry, skip, cancel, delete, redrive, got 'purge'"):
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


def test_an_operation_over_nothing_is_done_at_once(db):
    assert finished(begun("retry", selection={})).state == "done"


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

    assert finished(begun("delete", selection={})).moved == 7


def test_a_cancel_by_force_is_one_in_every_bit(queue, bits):
    jobs = [JobFactory(queue=queue, state=JobState.ACTIVE) for _ in range(3)]

    operation = finished(begun("cancel", selection={}, force=True))

    assert (operation.state, operation.moved) == ("done", 3)
    assert {reread(job).state for job in jobs} == {"stopped"}
    with pytest.raises(InvalidOption, match="force"):
        begun("retry", selection={}, force=True)


@pytest.mark.parametrize(
    "selection", ({"query": "state=failed"}, {"states": ["sleeping"]}, "queue", {"ids": ["x"]}, [], "")
)
def test_a_selection_that_is_none_is_refused(queue, selection):
    with pytest.raises(InvalidOption):
        begun("retry", selection=selection)
    assert not Operation.objects.exists()


def test_ids_and_a_selection_together_are_refused(queue):
    with pytest.raises(InvalidOption, match="cannot be given together"):
        begun("retry", ids=[], selection={})


def test_a_selection_with_a_snapshot_means_the_jobs_of_that_moment(queue):
    snapshot = services.current_snapshot()

    operation = begun("retry", selection=Selection(queue=queue.name, snapshot=snapshot))

    assert operation.snapshot == snapshot
    assert "snapshot" not in operation.selection
    assert operations.selection_of(operation).snapshot == snapshot


# ------------------------------------------------------------------------------------------- continued by housekeeping


def test_an_operation_that_no_process_advances_is_continued(queue, fifo_queue, bits):
    jobs = failed(queue, 5)
    spared = JobFactory(queue=fifo_queue, singleton_key="a", state=JobState.FAILED)
    operation = begun("retry", selection={"queue": queue.name})
    services.advance_operation(operation, seconds=0)
    left_alone(operation)

    assert operations.advance_operations() == {"retry": 3}

    operation.refresh_from_db()
    assert (operation.state, operation.moved) == ("done", 5)
    assert {reread(job).state for job in jobs} == {"retry"}
    assert reread(spared).state == "failed"


def test_an_operation_that_was_never_advanced_is_continued(queue):
    failed(queue, 1)
    rewrite_operation(begun("retry", selection={}), started_at=ago(seconds=60))

    assert operations.advance_operations() == {"retry": 1}


def test_an_operation_that_was_advanced_just_now_is_left_to_its_process(queue, bits):
    failed(queue, 5)
    operation = begun("retry", selection={})
    fresh = begun("retry", selection={})

    services.advance_operation(operation, seconds=0)
    rewrite_operation(operation, started_at=ago(hours=1))

    assert operations.advance_operations() == {}
    operation.refresh_from_db()
    fresh.refresh_from_db()
    assert (operation.moved, fresh.moved) == (2, 0)


def test_an_operation_that_was_stopped_is_not_continued(queue):
    failed(queue, 1)
    operation = left_alone(begun("retry", selection={}))
    services.stop_operation(operation)

    assert operations.advance_operations() == {}


def test_an_operation_goes_on_after_the_clock_was_put_back(queue):
    failed(queue, 1)
    left_alone(begun("retry", selection={}), seconds=-3_600)

    assert operations.advance_operations() == {"retry": 1}


def test_housekeeping_stops_in_time_and_goes_on_in_the_next_turn(queue, bits):
    failed(queue, 3)
    left_alone(begun("retry", selection={}))

    assert operations.advance_operations(seconds=0) == {}
    assert operations.advance_operations() == {"retry": 3}


@pytest.mark.django_db(transaction=True)
def test_an_operation_that_another_process_has_locked_is_skipped(queue, race):
    failed(queue, 1)
    operation = left_alone(begun("retry", selection={}))
    other = left_alone(begun("skip", selection={"states": ["retry"]}))

    def advance() -> dict[str, int]:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '5s'")  # because the test waits for who waits for the test
        return operations.advance_operations()

    with transaction.atomic():
        Operation.objects.select_for_update().get(pk=operation.pk)
        done = race(1, advance)

    assert done == [{"skip": 0}]
    other.refresh_from_db()
    assert (other.state, Operation.objects.get(pk=operation.pk).moved) == ("done", 0)


@pytest.mark.django_db(transaction=True)
def test_an_operation_that_fails_does_not_keep_others_from_going_on(queue, monkeypatch):
    job = failed(queue, 1)[0]
    broken = left_alone(begun("skip", selection={}), seconds=3_600)
    left_alone(begun("retry", selection={}))

    def break_down(*args, **kwargs):
        raise RuntimeError("it fails")

    monkeypatch.setattr(operations, "skip", break_down)
    with pytest.raises(RuntimeError):
        operations.advance_operations()

    assert reread(job).state == "retry"
    broken.refresh_from_db()
    assert broken.state == "running"


def test_an_operation_that_cannot_be_read_is_stopped_and_logged(queue, caplog):
    failed(queue, 1)
    unreadable = left_alone(begun("retry", selection={}))
    rewrite_operation(unreadable, selection={"query": "state=failed"})

    assert operations.advance_operations() == {}

    unreadable.refresh_from_db()
    assert unreadable.state == "stopped"
    assert "its selection cannot be read" in caplog.text


def test_a_pass_of_maintenance_continues_operations(queue):
    failed(queue, 2)
    left_alone(begun("retry", selection={}))

    assert maintain()["operations"].done == {"retry": 2}
