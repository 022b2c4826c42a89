"""An operation takes what its operator was shown, exactly; what came later is counted and left alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import transaction

from django_jobqueue import services
from django_jobqueue.engine.snapshots import MOST_CHARS
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.expressions import RowXid
from django_jobqueue.models import Job, Operation, Queue
from tests.past import reread, rewrite, rewrite_operation

from .sessions import Session
from .steps import dead, fetched, running, sent, state_of

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

CHANGED = "it changed after it was shown"
OF_ANOTHER_SERVER = 2**62


def fail(job: Job) -> None:
    services.fail(job, "it failed", for_good=True)


def in_savepoint(work: Callable[[Job], None]) -> Callable[[Job], None]:
    def inside(job: Job) -> None:
        with transaction.atomic(), transaction.atomic():
            work(job)

    return inside


def ended_around_a_snapshot(queue: Queue, other: Session, end: Callable[[Job], None]) -> tuple[list[Job], str]:
    """Three jobs that ended: committed before a snapshot, in a transaction that was open across it, and after it."""
    jobs = running(queue, "a", "b", "c")
    end(jobs[0])
    other.begin()
    other.run(end, jobs[1])
    sent(queue, "committed after the open transaction began")
    snapshot = services.current_snapshot()
    other.commit()
    end(jobs[2])
    return jobs, snapshot


def begun(verb: str, snapshot: str | None = None, **options: Any) -> Operation:
    return services.begin_operation(verb, operator="olga", reason="because", snapshot=snapshot, **options)


def finished(operation: Operation) -> Operation:
    return services.advance_operation(operation, seconds=50)


def came_to(operation: Operation) -> tuple[str, int, int, int]:
    return operation.state, operation.moved, operation.refused, operation.details["came_later"]


# ------------------------------------------------------------------------------------------------- all of a filter


@pytest.mark.parametrize("wrapped", (lambda end: end, in_savepoint), ids=("plain", "in a savepoint"))
@pytest.mark.parametrize(("verb", "becomes"), (("retry", "retry"), ("skip", "stopped"), ("delete", None)))
def test_of_failed_jobs_only_those_committed_in_the_snapshot_are_taken(
    queue, other: Session, verb, becomes, wrapped
):  # F89 B43
    jobs, snapshot = ended_around_a_snapshot(queue, other, wrapped(fail))

    operation = finished(begun(verb, snapshot, selection={}))

    assert came_to(operation) == ("done", 1, 0, 2)
    states = dict(Job.objects.values_list("pk", "state"))
    assert [states.get(job.pk) for job in jobs] == [becomes, "failed", "failed"]


def test_of_completed_jobs_only_those_committed_in_the_snapshot_are_deleted(queue, other: Session):  # B43
    jobs, snapshot = ended_around_a_snapshot(queue, other, services.complete)

    operation = finished(begun("delete", snapshot, selection={}))

    assert came_to(operation) == ("done", 1, 0, 2)
    assert set(Job.objects.in_state("completed")) == set(jobs[1:])


def test_a_completed_job_that_failed_before_is_judged_by_its_completion(queue):  # B43
    (job,) = running(queue, "a")
    services.fail(job, "it failed")
    snapshot = services.current_snapshot()
    services.complete(fetched(queue)[0])

    assert came_to(finished(begun("delete", snapshot, selection={}))) == ("done", 0, 0, 1)


def test_of_waiting_jobs_only_those_sent_in_the_snapshot_are_cancelled(queue, other: Session):  # B43
    other.begin()
    late = other.run(sent, queue, "in an open transaction")
    waiting, claimed = sent(queue, "a"), sent(queue, "b", priority=1)
    snapshot = services.current_snapshot()
    other.commit()
    after = sent(queue, "c")
    assert services.fetch(queue.name) == [claimed]

    operation = finished(begun("cancel", snapshot, selection={}))

    assert came_to(operation) == ("done", 2, 0, 2)
    assert [state_of(job) for job in (waiting, claimed)] == ["cancelled", "cancelling"]  # also if claimed meanwhile
    assert [state_of(job) for job in (late, after)] == ["created", "created"]


def test_without_a_snapshot_it_is_that_of_the_call(queue, other: Session):  # B43
    jobs = running(queue, "a", "b")
    fail(jobs[0])
    operation = begun("skip", selection={})
    fail(jobs[1])

    assert came_to(finished(operation)) == ("done", 1, 0, 1)


def test_what_came_later_is_left_alone_by_every_bit(queue, monkeypatch):  # B43
    monkeypatch.setattr("django_jobqueue.services.operations.AT_ONCE", 2)
    jobs = running(queue, *"abcdef")
    for job in jobs[:3]:
        fail(job)
    operation = begun("retry", selection={})
    first = services.advance_operation(operation, seconds=0)
    fail(jobs[4])
    last = finished(operation)

    assert (first.state, first.moved) == ("running", 2)
    assert came_to(last) == ("done", 3, 0, 1)


def test_only_what_the_filter_finds_is_counted_as_later(queue, fifo_queue):  # B43
    operation = begun("retry", selection={"queue": queue.name})
    dead(queue)
    dead(fifo_queue)

    assert came_to(finished(operation)) == ("done", 0, 0, 1)


# --------------------------------------------------------------------------------------------------- jobs by their ids


@pytest.mark.parametrize("verb", ("retry", "skip", "delete"))
def test_a_named_job_that_failed_again_after_it_was_shown_is_refused(queue, verb):  # B43
    job = dead(queue)
    snapshot = services.current_snapshot()
    services.retry(job.pk)
    fail(fetched(queue)[0])

    operation = finished(begun(verb, snapshot, ids=[job.pk]))

    assert (operation.moved, operation.details["refused"]) == (0, {str(job.pk): CHANGED})
    assert state_of(job) == "failed"


def test_a_named_job_that_was_sent_anew_under_its_id_is_not_cancelled(queue):  # B43
    job = sent(queue)
    snapshot = services.current_snapshot()
    services.purge(queue.name)
    sent(queue, id=job.pk)

    operation = finished(begun("cancel", snapshot, ids=[job.pk]))

    assert (operation.moved, operation.details["refused"]) == (0, {str(job.pk): CHANGED})
    assert state_of(job) == "created"


@pytest.mark.parametrize(
    ("verb", "states"), (("retry", "failed"), ("skip", "failed"), ("cancel", "created"), ("delete", "failed"))
)
def test_named_jobs_that_stayed_as_they_were_are_taken(queue, verb, states):  # B43
    job = dead(queue) if states == "failed" else sent(queue)

    operation = finished(begun(verb, services.current_snapshot(), ids=[job.pk]))

    assert (operation.moved, operation.refused) == (1, 0)


# ------------------------------------------------------------------------------------ between the look and the lock


@pytest.mark.parametrize("verb", ("retry", "skip", "delete"))
@pytest.mark.parametrize("named", (True, False))
def test_a_job_that_fails_again_while_it_is_waited_for_is_refused(
    queue, other: Session, third: Session, verb, named
):  # B43
    job = dead(queue)
    operation = begun(verb, ids=[job.pk]) if named else begun(verb, selection={})
    other.begin()
    other.run(services.retry, job.pk)

    working = third.start_blocked(finished, operation)  # it has seen the job as it was
    other.run(lambda: fail(fetched(queue)[0]))
    other.commit()
    done = working.result(10)

    assert (done.state, done.moved, done.details["refused"]) == ("done", 0, {str(job.pk): CHANGED})
    assert state_of(job) == "failed"


# ------------------------------------------------------------------------------------------------ ids of transactions


def test_a_change_is_marked_with_the_transaction_and_not_with_its_savepoint(queue):
    (job,) = running(queue, "a")

    with transaction.atomic():
        sent(queue, "b")
        in_savepoint(fail)(job)

    moved_by, written_by = Job.objects.values_list("moved_xid", RowXid()).get(pk=job.pk)
    assert moved_by == Job.objects.get(singleton_key="b").sent_xid
    assert written_by > moved_by  # the savepoint's


def test_a_row_tells_the_transaction_that_wrote_it(queue):
    job = sent(queue)

    assert Job.objects.values_list(RowXid(), flat=True).get(pk=job.pk) == job.sent_xid


@pytest.mark.parametrize("xid", (None, OF_ANOTHER_SERVER))
def test_jobs_from_before_the_column_and_from_a_dump_are_taken(queue, xid):
    job = dead(queue)
    snapshot = services.current_snapshot()
    rewrite(job, moved_xid=xid)

    assert came_to(finished(begun("skip", snapshot, selection={}))) == ("done", 1, 0, 0)


def test_what_the_operators_own_transaction_did_is_taken(queue):
    with transaction.atomic():
        job = dead(queue)
        operation = begun("skip", services.current_snapshot(), selection={})
        with transaction.atomic():  # its end makes the transaction look older than the snapshot's last
            sent(queue, "b")
            transaction.set_rollback(True)
        operation = finished(operation)

    assert came_to(operation) == ("done", 1, 0, 0)
    assert state_of(job) == "stopped"


def test_an_operation_that_was_begun_before_the_column_goes_on(queue):
    (job,) = running(queue, "a")
    operation = rewrite_operation(begun("skip", selection={}), snapshot="")
    fail(job)

    operation = finished(operation)

    assert (operation.state, operation.moved) == ("done", 1)


# ---------------------------------------------------------------------------------------------------------- the text


def test_a_snapshot_is_kept_with_the_operation(queue):
    snapshot = services.current_snapshot()

    assert begun("retry", snapshot, selection={}).snapshot == snapshot
    assert begun("retry", selection={}).snapshot


@pytest.mark.parametrize(
    "snapshot",
    (
        "",
        "nonsense",
        "1:2",
        "2:1:",
        "0:1:",
        "1:3:2,1",
        "1:3:3",
        "1:3:1,",
        "1:1:\n",
        "1:1:'; DROP TABLE jobqueue_job; --",
        "\u0661:\u0661:",
        "1:1:" + ",".join(["1"] * MOST_CHARS),
        5,
        b"1:1:",
    ),
    ids=ascii,
)
@pytest.mark.parametrize("named", (True, False))
def test_a_text_that_is_no_snapshot_is_refused(queue, snapshot, named):
    job = dead(queue)
    chosen: dict[str, Any] = {"ids": [job.pk]} if named else {"selection": {}}

    with pytest.raises(InvalidOption, match="snapshot: expected one that current_snapshot"):
        begun("skip", snapshot, **chosen)

    assert not Operation.objects.exists()


def test_a_snapshot_of_another_server_is_refused(queue):
    """All that comes would count as shown."""
    with pytest.raises(InvalidOption, match="newer than this database"):
        begun("skip", f"1:{OF_ANOTHER_SERVER}:", selection={})


@pytest.mark.parametrize("snapshot", ("1:1:", "3:7:3,5"))
def test_an_old_snapshot_is_as_good(queue, snapshot):
    dead(queue)

    assert came_to(finished(begun("skip", snapshot, selection={}))) == ("done", 0, 0, 1)


@pytest.mark.parametrize("is_callers", (True, False))
def test_verbs_refuse_what_changed_after_a_snapshot(queue, is_callers):  # B43
    job = dead(queue)
    snapshot = services.current_snapshot()
    services.retry(job.pk)
    fail(fetched(queue)[0])

    with transaction.atomic() if is_callers else nullcontext():
        assert services.retry([job.pk], snapshot=snapshot).refused == {job.pk: CHANGED}
        assert services.skip(job.pk, reason="because", snapshot=snapshot).refused == {job.pk: CHANGED}

    assert reread(job).state == "failed"
    assert services.retry([job.pk], snapshot=services.current_snapshot()).moved == [job.pk]
