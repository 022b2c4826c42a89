"""A row or a key that another session has locked delays its own lane and nothing else; the lane is released later.

Sessions under test give up any wait for a lock after a second, by ``lock_timeout``: a verb that waits for the row of
another job fails here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_jobqueue import services
from django_jobqueue.engine import lanes, sql, workers
from django_jobqueue.models import Job, PendingRelease, Queue, Worker
from django_jobqueue.states import JobState
from tests.past import ago, rewrite

from .sessions import Session, scalar
from .steps import fetched, lock_row, running, sent, state_of

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

Check = Callable[[], None]


@pytest.fixture
def worker(session: Callable[[], Session]) -> Session:
    """The session under test: it gives up any wait for a lock after a second."""
    one = session()
    one.run(execute, "SET lock_timeout = '1s'")
    return one


@pytest.fixture
def no_alarm(caplog: pytest.LogCaptureFixture) -> Iterator[Check]:
    """``no_alarm()``: the sweep finds no stranded lane; nor did any, when the test ends."""
    caplog.set_level(logging.ERROR, "django_jobqueue")

    def check() -> None:
        assert services.check_lanes() == []

    yield check
    check()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


class Lane(NamedTuple):
    """A key with a running job and two that wait behind it."""

    queue: Queue
    job: Job
    next: UUID


def lane(queue: Queue, key: str = "a", **options: Any) -> Lane:
    """The waiting jobs are held for their lane, as after a bulk send or a fetch that found them."""
    [job] = running(queue, key, **options)
    next, _ = services.send_many(queue.name, [{"singleton_key": key}] * 2)
    assert next is not None
    fetched(queue)
    assert Job.objects.filter(queue=queue, singleton_key=key, hold="lane").count() == 2
    return Lane(queue, job, next)


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def lock_key(queue: Queue, key: str = "a") -> None:
    """The lock that everything takes which judges this lane."""
    scalar(f"SELECT pg_advisory_xact_lock({sql.lanes.KEY_HASH.format(key='%s', queue='%s')})::text", key, queue.name)


def hold(other: Session, what: str, given: Lane) -> None:
    """Have another session lock the next row of this lane, or its key, until it ends its transaction."""
    other.begin()
    if what == "row":
        other.run(lock_row, given.next)
    else:
        other.run(lock_key, given.queue, given.job.singleton_key)


def pending_keys() -> list[str]:
    return sorted(set(PendingRelease.objects.values_list("singleton_key", flat=True)))


def goes_on(given: Lane) -> None:
    """After the other session has ended, the lane is released once and its next job is fetched."""
    assert services.release_pending() == 1
    assert pending_keys() == []
    assert services.release_pending() == 0
    assert given.next in [job.pk for job in fetched(given.queue)]


# ------------------------------------------------------------------------------------------------------ batches: F78


@pytest.mark.parametrize("hand_over", (False, True))
def test_a_batch_is_finished_although_the_next_row_of_a_lane_is_locked(
    laned_queue, other: Session, worker: Session, no_alarm: Check, hand_over
):  # F78 G20
    given = lane(laned_queue)
    others = [lane(laned_queue, key) for key in "bc"]
    hold(other, "row", given)

    finished = worker.run(
        services.finish_many, [(one.job, None) for one in (given, *others)], hand_over=hand_over, worker="w"
    )

    assert set(finished.completed) == {one.job.pk for one in (given, *others)}
    assert (finished.busy, finished.lost) == ([], [])
    claimed = [*finished.next, *worker.run(fetched, laned_queue)]
    assert {job.pk for job in claimed} == {one.next for one in others}
    assert pending_keys() == ["a"]
    no_alarm()
    assert worker.run(services.release_pending) == 0
    other.rollback()
    no_alarm()
    goes_on(given)


def test_a_batch_is_finished_although_the_key_of_a_lane_is_locked(
    laned_queue, other: Session, worker: Session, no_alarm: Check
):  # F78 G20
    given = lane(laned_queue)
    others = [lane(laned_queue, key) for key in "bc"]
    hold(other, "key", given)

    finished = worker.run(services.finish_many, [(one.job, None) for one in (given, *others)], hand_over=True)

    assert set(finished.completed) == {one.job.pk for one in (given, *others)}
    assert (finished.busy, pending_keys()) == ([], ["a"])
    no_alarm()
    other.rollback()
    goes_on(given)


def test_two_locked_rows_delay_two_lanes_and_no_third(fifo_queue, other: Session, worker: Session, no_alarm: Check):
    held = [lane(fifo_queue, key) for key in "ab"]  # F78 G20
    free = lane(fifo_queue, "c")
    other.begin()
    for one in held:
        other.run(lock_row, one.next)

    finished = worker.run(services.finish_many, [(one.job, None) for one in (*held, free)], hand_over=True)

    assert len(finished.completed) == 3
    assert [job.pk for job in finished.next] == [free.next]
    assert pending_keys() == ["a", "b"]
    no_alarm()
    other.rollback()
    assert services.release_pending() == 2
    assert {job.pk for job in fetched(fifo_queue)} == {one.next for one in held}


def test_a_batch_inside_a_callers_transaction_does_not_wait_for_a_locked_next_row(
    fifo_queue, other: Session, worker: Session, no_alarm: Check
):  # F78 G20
    given, free = lane(fifo_queue), lane(fifo_queue, "b")
    hold(other, "row", given)
    worker.begin()

    finished = worker.run(services.finish_many, [(given.job, None), (free.job, None)])
    worker.commit()

    assert set(finished.completed) == {given.job.pk, free.job.pk}
    assert pending_keys() == ["a"]
    no_alarm()
    other.rollback()
    goes_on(given)


def test_a_batch_of_failures_does_not_wait_for_a_locked_next_row(
    singleton_queue, other: Session, worker: Session, no_alarm: Check
):  # F78 G20: only one of a key runs at a time, and a failed one lets the next go
    given, free = lane(singleton_queue), lane(singleton_queue, "b")
    hold(other, "row", given)

    finished = worker.run(services.finish_many, (), [(given.job, "it failed"), (free.job, "it failed")])

    assert {failure.id for failure in finished.failed} == {given.job.pk, free.job.pk}
    assert pending_keys() == ["a"]
    no_alarm()
    other.rollback()
    goes_on(given)


def test_a_pending_release_survives_the_process_that_owed_it(
    fifo_queue, other: Session, worker: Session, no_alarm: Check
):  # F78
    given = lane(fifo_queue)
    hold(other, "row", given)
    worker.run(services.finish_many, [(given.job, None)])
    scalar("SELECT pg_terminate_backend(%s)", worker.pid)

    other.rollback()

    goes_on(given)


def test_a_job_sent_to_a_lane_whose_release_is_pending_does_not_overtake(
    fifo_queue, other: Session, worker: Session, no_alarm: Check
):  # F78 R014
    given = lane(fifo_queue)
    hold(other, "row", given)
    worker.run(services.finish_many, [(given.job, None)])

    late = sent(fifo_queue)
    for _ in range(3):
        assert worker.run(fetched, fifo_queue) == []

    other.rollback()
    goes_on(given)
    assert state_of(late) == JobState.CREATED


# --------------------------------------------------------------------------------------------------- one job: F79


@pytest.mark.parametrize("what", ("row", "key"))
@pytest.mark.parametrize("verb", (services.complete, services.stop))
def test_a_verb_that_ends_one_job_does_not_wait_for_the_next(
    laned_queue, other: Session, worker: Session, no_alarm: Check, verb, what
):  # F79 G20
    given = lane(laned_queue)
    hold(other, what, given)

    worker.run(verb, given.job)

    assert state_of(given.job) in (JobState.COMPLETED, JobState.STOPPED)
    assert pending_keys() == ["a"]
    no_alarm()
    other.rollback()
    no_alarm()
    goes_on(given)


def test_a_verb_waits_a_moment_for_a_key_that_a_fetch_holds(laned_queue, other: Session, monkeypatch):  # F79
    given = lane(laned_queue)
    hold(other, "key", given)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        other.rollback()

    monkeypatch.setattr(lanes, "time", SimpleNamespace(sleep=pause))
    with CaptureQueriesContext(connection) as sent_queries:
        services.complete(given.job)

    assert pauses == [lanes.PAUSES[0]]
    assert not any("jobqueue_pendingrelease" in query["sql"] for query in sent_queries)
    assert [job.pk for job in fetched(laned_queue)] == [given.next]


@pytest.mark.parametrize("what", ("row", "key"))
def test_a_completion_inside_a_transaction_does_not_wait_for_the_next(
    laned_queue, other: Session, worker: Session, no_alarm: Check, what
):  # F79 G20: as that of an atomic handler
    given = lane(laned_queue)
    hold(other, what, given)
    worker.begin()

    worker.run(services.complete, given.job)
    worker.commit()

    assert state_of(given.job) == JobState.COMPLETED
    assert pending_keys() == ["a"]
    no_alarm()
    other.rollback()
    no_alarm()
    goes_on(given)


def test_a_completion_that_is_rolled_back_leaves_no_pending_release(
    fifo_queue, other: Session, worker: Session, no_alarm: Check
):  # F79
    given = lane(fifo_queue)
    hold(other, "row", given)
    worker.begin()
    worker.run(services.complete, given.job)

    worker.rollback()

    assert (state_of(given.job), pending_keys()) == (JobState.ACTIVE, [])
    other.rollback()
    assert services.release_pending() == 0


def test_two_completions_in_open_transactions_do_not_wait_for_each_other(
    fifo_queue, other: Session, worker: Session, no_alarm: Check
):  # F79: pending releases of the same and of other lanes are only inserted
    first, second = lane(fifo_queue), lane(fifo_queue, "b")
    other.begin()
    other.run(lock_key, fifo_queue, "b")
    other.run(services.complete, first.job)
    worker.begin()

    worker.run(services.complete, second.job)
    worker.commit()
    other.commit()

    services.release_pending()
    assert {job.pk for job in fetched(fifo_queue)} == {first.next, second.next}


# ---------------------------------------------------------------------------------------------------- fetch: F80


@pytest.mark.parametrize("limit", (1, 10))
@pytest.mark.parametrize("head", ("sent", "delayed"))
def test_a_locked_due_job_with_thousands_of_its_key_behind_it_delays_no_fetch(
    fifo_queue, other: Session, worker: Session, no_alarm: Check, head, limit
):  # F80 G20
    first = sent(fifo_queue, delay=60 if head == "delayed" else None)
    services.send_many(fifo_queue.name, [{"singleton_key": "a"}] * 3_000)
    Job.objects.filter(queue=fifo_queue).exclude(pk=first.pk).update(hold=None)  # as if each was sent alone
    if head == "delayed":
        rewrite(first, start_after=ago(seconds=1))
    other.begin()
    other.run(lock_row, first.pk)

    for number in range(5):
        free = sent(fifo_queue, f"free-{number}")
        assert worker.run(fetched, fifo_queue, limit) == [free]

    no_alarm()
    other.rollback()
    for _ in range(5):  # a fetch that meets the rest of the lane first holds it
        if claimed := worker.run(fetched, fifo_queue, limit):
            break
    assert claimed == [first]


def test_a_locked_due_job_in_front_of_a_lane_is_not_overtaken(fifo_queue, other: Session, worker: Session):  # F80
    first = sent(fifo_queue)
    sent(fifo_queue)
    other.begin()
    other.run(lock_row, first.pk)

    assert worker.run(fetched, fifo_queue) == []

    other.rollback()
    assert worker.run(fetched, fifo_queue) == [first]


# ----------------------------------------------------------------------------------------------- sweeps: F25 F78


def abandoned(queue: Queue, key: str, incarnation: UUID) -> Lane:
    """A lane that a sweep must release: its job is cancelled, because one that is tried again keeps its lane."""
    given = lane(queue, key, worker="w", incarnation=incarnation)
    services.cancel(given.job.pk)
    rewrite(given.job, expire_at=ago(hours=1), cancel_requested_at=ago(hours=1))
    return given


def expire(incarnation: UUID) -> int:
    with override_settings(JOBQUEUE={"CANCEL_GRACE_SECONDS": 1}):
        services.expire()
    return 2


def recover_lost(incarnation: UUID) -> int:
    return sum(services.recover_lost([incarnation]).values())


def recover_dead(incarnation: UUID) -> int:
    return workers.recover_dead("w", incarnation, "died", using="default")


@pytest.mark.parametrize("sweep", (expire, recover_lost, recover_dead))
def test_a_sweep_does_not_wait_for_a_locked_next_row(
    laned_queue, other: Session, worker: Session, no_alarm: Check, sweep
):  # F25 F78 G20
    gone = Worker.objects.create(name="w", stopped_at=ago(seconds=1) if sweep is expire else None).pk
    given, free = abandoned(laned_queue, "a", gone), abandoned(laned_queue, "b", gone)
    hold(other, "row", given)

    assert worker.run(sweep, gone) == 2

    assert {state_of(given.job), state_of(free.job)} <= {JobState.STOPPED, JobState.UNKNOWN_STOPPED}
    assert free.next in [job.pk for job in worker.run(fetched, laned_queue)]
    assert pending_keys() == ["a"]
    no_alarm()
    other.rollback()
    no_alarm()
    goes_on(given)


def test_a_sweep_passes_over_a_lane_whose_key_is_locked(laned_queue, other: Session, worker: Session, no_alarm: Check):
    gone = Worker.objects.create(name="w").pk  # F25 G20
    given, free = abandoned(laned_queue, "a", gone), abandoned(laned_queue, "b", gone)
    hold(other, "key", given)

    assert worker.run(recover_lost, gone) == 1

    assert free.next in [job.pk for job in worker.run(fetched, laned_queue)]
    no_alarm()
    other.rollback()
    assert recover_lost(gone) == 1
    assert given.next in [job.pk for job in fetched(laned_queue)]


# --------------------------------------------------------------------------------------- stricter isolation: F83


STRICT = ("REPEATABLE READ", "SERIALIZABLE")


@pytest.mark.parametrize("isolation", STRICT)
@pytest.mark.parametrize("verb", ("complete", "finish_many"))
def test_a_sweep_between_the_commit_and_the_release_finds_no_stranded_lane(
    laned_queue, other: Session, worker: Session, no_alarm: Check, verb, isolation
):  # F83
    given = lane(laned_queue)
    found: list[Any] = []

    def sweep() -> None:
        found.append((other.run(state_of, given.job), other.run(services.check_lanes)))

    worker.begin(isolation)
    worker.run(transaction.on_commit, sweep)  # the first of all that happens after the commit
    if verb == "complete":
        worker.run(services.complete, given.job)
    else:
        assert worker.run(services.finish_many, [(given.job, None)]).completed == [given.job.pk]
    worker.commit()

    assert found == [(JobState.COMPLETED, [])]
    services.release_pending()
    assert given.next in [job.pk for job in fetched(laned_queue)]


@pytest.mark.parametrize("isolation", STRICT)
@pytest.mark.parametrize("what", ("row", "key"))
def test_a_strict_completion_waits_for_no_lock_after_its_commit(
    laned_queue, other: Session, worker: Session, no_alarm: Check, what, isolation
):  # F83 F79
    given = lane(laned_queue)
    hold(other, what, given)
    worker.begin(isolation)
    worker.run(services.complete, given.job)

    worker.commit()

    assert (state_of(given.job), pending_keys()) == (JobState.COMPLETED, ["a"])
    no_alarm()
    other.rollback()
    no_alarm()
    goes_on(given)


# ------------------------------------------------------------------------------------------------- releasing later


def test_a_pending_release_does_not_keep_others_waiting(fifo_queue, other: Session, worker: Session, no_alarm: Check):
    held, free = lane(fifo_queue), lane(fifo_queue, "b")
    other.begin()
    for one in (held, free):
        other.run(lock_row, one.next)
    worker.run(services.finish_many, [(held.job, None), (free.job, None)])
    other.rollback()
    hold(other, "row", held)

    assert worker.run(services.release_pending) == 1

    assert [job.pk for job in worker.run(fetched, fifo_queue)] == [free.next]
    assert pending_keys() == ["a"]
    no_alarm()
    other.rollback()
    goes_on(held)


def test_two_housekeepers_release_a_lane_once(fifo_queue, other: Session, worker: Session, no_alarm: Check):
    given = lane(fifo_queue)
    hold(other, "row", given)
    worker.run(services.complete, given.job)
    other.rollback()
    other.begin()
    assert other.run(services.release_pending) == 1

    assert worker.run(services.release_pending) == 0

    other.commit()
    assert pending_keys() == []
    assert [job.pk for job in fetched(fifo_queue)] == [given.next]


def test_a_lane_that_is_blocked_again_is_not_released(fifo_queue, other: Session, worker: Session, no_alarm: Check):
    """The release judges the lane as it is then, not as it was when the release became pending."""
    given = lane(fifo_queue)
    hold(other, "row", given)
    worker.run(services.complete, given.job)
    other.rollback()
    head = Job.objects.get(pk=given.next)
    rewrite(head, hold=None)
    [claimed] = fetched(fifo_queue)

    services.release_pending()

    assert (claimed.pk, fetched(fifo_queue)) == (given.next, [])
    assert pending_keys() == []


def test_a_late_start_does_not_wait_for_a_locked_row(fifo_queue, other: Session, worker: Session):  # F76
    sent(fifo_queue, "a")
    sent(fifo_queue, "b")
    locked, free = fetched(fifo_queue, 2)
    other.begin()
    other.run(services.touch, locked)

    assert worker.run(workers.renew, [locked, free], using="default") == [free]
