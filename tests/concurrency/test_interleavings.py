"""Two connections, step by step: the second one waits or skips, and changes nothing that is not its own."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from django.db import connection

from django_jobqueue import services
from django_jobqueue.engine.transactions import AFTER, Statement, in_transaction, rows_of_each
from django_jobqueue.exceptions import ClaimLost, InvalidTransition
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.past import ago, rewrite

from .sessions import DEADLINE, Session, scalar
from .steps import dead, fetched, lock_row, row_of, sent, state_of

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]


@pytest.fixture(params=["queue", "fifo_queue", "singleton_queue"])
def any_queue(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


# -------------------------------------------------------------------------------------------------- a locked head


def test_a_locked_head_is_passed_by_and_nobody_of_its_key_goes_instead(fifo_queue, other: Session):  # R002 R085
    head, second = sent(fifo_queue), sent(fifo_queue)
    elsewhere = sent(fifo_queue, "b")
    other.begin()
    other.run(lock_row, head.pk)
    before = row_of(head)

    assert fetched(fifo_queue) == [elsewhere]

    assert row_of(head) == before
    assert state_of(second) == JobState.CREATED
    other.rollback()
    assert fetched(fifo_queue) == [head]


def test_a_claim_that_is_rolled_back_leaves_the_head_to_the_next(fifo_queue, other: Session):  # R002 I2
    head, second = sent(fifo_queue), sent(fifo_queue)
    other.begin()
    assert other.run(fetched, fifo_queue) == [head]

    assert fetched(fifo_queue) == []
    assert state_of(second) == JobState.CREATED

    other.rollback()
    [again] = fetched(fifo_queue)
    assert (again, again.attempt) == (head, 1)
    assert fetched(fifo_queue) == []


@pytest.mark.parametrize("hand_over", (False, True))
def test_a_locked_row_that_is_due_is_not_overtaken(fifo_queue, other: Session, hand_over):  # B18 I2
    services.send(fifo_queue.name, singleton_key="a")
    [first] = fetched(fifo_queue)
    due = sent(fifo_queue, delay=60)
    later = sent(fifo_queue)
    rewrite(due, start_after=ago(seconds=1))
    other.begin()
    other.run(lock_row, due.pk)  # so that no fetch can lift its hold

    assert services.finish_many([(first, None)], hand_over=hand_over).next == []
    assert fetched(fifo_queue) == []

    assert state_of(later) == JobState.CREATED
    other.rollback()
    assert fetched(fifo_queue) == [due]


def test_a_hold_that_is_lifted_at_whatever_moment_of_a_fetch_lets_nobody_overtake(fifo_queue, session):  # B18 I2
    for moment in count():
        key = str(moment)
        due, later = sent(fifo_queue, key, delay=60), sent(fifo_queue, key)
        rewrite(due, start_after=ago(seconds=1))
        stranger = session()
        stranger.begin()
        stranger.run(lock_row, due.pk)  # so that the fetch cannot lift the hold itself
        lifting = LiftsHold(due, stranger, after=moment)

        with connection.execute_wrapper(lifting):
            jobs = fetched(fifo_queue)

        assert later not in jobs, f"the hold was lifted after statement {moment}"
        if lifting.left >= 0:
            break  # the fetch has fewer statements
    assert moment > 3


class LiftsHold:
    """Has another transaction lift a hold, and commit that, right after one statement of ours."""

    def __init__(self, job: Job, stranger: Session, *, after: int) -> None:
        self.job, self.stranger, self.left = job, stranger, after

    def __call__(self, execute: Any, *args: Any) -> Any:
        result = execute(*args)
        if self.left == 0:
            self.stranger.run(Job.objects.filter(pk=self.job.pk).update, hold=None)
            self.stranger.commit()
        self.left -= 1
        return result


# ------------------------------------------------------------------------------------------ complete against fetch


@pytest.mark.parametrize("isolation", ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
def test_the_next_goes_when_the_completion_is_committed_and_not_before(fifo_queue, other: Session, isolation):  # R014
    sent(fifo_queue)
    second = sent(fifo_queue)
    [first] = fetched(fifo_queue)
    other.begin(isolation)
    other.run(services.complete, first)

    assert fetched(fifo_queue) == []
    assert state_of(second) == JobState.CREATED

    other.commit()
    assert fetched(fifo_queue) == [second]


@pytest.mark.parametrize("isolation", ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
def test_a_completion_that_is_rolled_back_releases_nobody(fifo_queue, other: Session, isolation):  # R002
    sent(fifo_queue)
    sent(fifo_queue)
    [first] = fetched(fifo_queue)
    other.begin(isolation)
    other.run(services.complete, first)

    other.rollback()

    assert fetched(fifo_queue) == []
    assert state_of(first) == JobState.ACTIVE
    services.complete(first)


def test_a_completion_beside_a_fetch_that_judges_its_lane_leaves_the_release_for_later(  # I2 F79
    fifo_queue, other: Session, third: Session
):
    sent(fifo_queue)
    [first] = fetched(fifo_queue)
    second = sent(fifo_queue)
    other.begin()
    assert other.run(fetched, fifo_queue) == []  # it puts the second job on hold, not yet committed

    third.run(services.complete, first)
    assert state_of(first) == JobState.COMPLETED
    assert services.check_lanes() == []  # its release is pending, so it is not stranded
    assert fetched(fifo_queue) == []
    other.commit()

    assert fetched(fifo_queue) == [second]


@pytest.mark.parametrize("committed", (True, False))
def test_a_late_result_waits_for_the_next_claim_and_counts_only_without_it(
    any_queue, other: Session, third: Session, committed
):  # B27 I7
    sent(any_queue)
    [lost] = fetched(any_queue, worker="gone")
    services.mark_worker_unresponsive("gone")
    other.begin()
    [again] = other.run(fetched, any_queue)

    completion = third.start_blocked(services.complete, lost, {"n": 1})
    (other.commit if committed else other.rollback)()

    if committed:
        assert isinstance(completion.exception(10), ClaimLost)
        assert (state_of(lost), row_of(lost)["output"]) == (JobState.ACTIVE, None)
        services.complete(again)
    else:
        completion.result(10)
        assert (state_of(lost), row_of(lost)["output"]) == (JobState.COMPLETED, {"n": 1})


# --------------------------------------------------------------------------------------------- retry against send


@pytest.fixture(params=["queue", "exclusive_queue"])
def unique_queue(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_a_retry_waits_for_a_send_into_its_slot_and_is_refused(unique_queue, other: Session, third: Session):  # B31
    job = dead(unique_queue)
    before = row_of(job)
    other.begin()
    newer = other.run(sent, unique_queue)

    retrying = third.start_blocked(services.retry, [job])
    other.commit()

    outcome = retrying.result(10)
    assert outcome.moved == []
    assert str(newer.pk) in outcome.refused[job.pk]
    assert row_of(job) == before


def test_a_retry_takes_the_slot_of_a_send_that_is_rolled_back(unique_queue, other: Session, third: Session):  # B31
    job = dead(unique_queue)
    other.begin()
    other.run(sent, unique_queue)

    retrying = third.start_blocked(services.retry, job)
    other.rollback()

    assert retrying.result(10).moved == [job.pk]
    assert fetched(unique_queue) == [job]


def test_a_send_waits_for_a_retry_of_its_slot_and_sends_nothing(unique_queue, other: Session, third: Session):  # B32
    job = dead(unique_queue)
    other.begin()
    other.run(services.retry, job)

    third.begin()
    sending = third.start_blocked(services.send, unique_queue.name, singleton_key="a")
    other.commit()

    assert sending.result(10) is None
    assert third.run(Job.objects.count) == 1  # its transaction stays usable
    third.commit()


def test_a_send_to_an_ordered_key_waits_for_no_retry(fifo_queue, other: Session):  # R027 B7
    job = dead(fifo_queue)
    other.begin()
    other.run(services.retry, job)

    newer = sent(fifo_queue)

    assert fetched(fifo_queue) == []
    other.commit()
    assert fetched(fifo_queue) == [job]
    assert state_of(newer) == JobState.CREATED


# ----------------------------------------------------------------------------------------- cancel against complete


@pytest.mark.parametrize("committed", (True, False))
def test_a_completion_waits_for_a_cancel_and_still_counts(any_queue, other: Session, third: Session, committed):  # R243
    sent(any_queue)
    [job] = fetched(any_queue)
    other.begin()
    assert other.run(services.cancel, [job]).cancelled == [job.pk]

    completion = third.start_blocked(services.complete, job, {"n": 1})
    (other.commit if committed else other.rollback)()
    completion.result(10)

    assert state_of(job) == JobState.COMPLETED
    assert row_of(job)["output"] == {"n": 1}


def test_a_completion_waits_for_a_forced_cancel_and_is_refused(any_queue, other: Session, third: Session):  # I7 F61
    sent(any_queue)
    [job] = fetched(any_queue)
    other.begin()
    other.run(services.cancel, [job], force=True)

    completion = third.start_blocked(services.complete, job, {"n": 1})
    other.commit()

    assert isinstance(completion.exception(10), ClaimLost | InvalidTransition)
    assert state_of(job) == JobState.STOPPED
    assert row_of(job)["output"] is None


def test_a_cancel_waits_for_a_completion_and_reaches_nobody(any_queue, other: Session, third: Session):  # B12 F61
    sent(any_queue)
    [job] = fetched(any_queue)
    other.begin()
    other.run(services.complete, job)

    cancelling = third.start_blocked(services.cancel, [job])
    other.commit()

    cancellation = cancelling.result(10)
    assert (cancellation.cancelled, cancellation.unknown) == ([], [job.pk])
    assert state_of(job) == JobState.COMPLETED


def test_a_completion_waits_for_a_heartbeat_and_still_counts(any_queue, other: Session, third: Session):  # B27 R255
    sent(any_queue, heartbeat_seconds=10)
    [job] = fetched(any_queue)
    other.begin()
    other.run(services.touch, job)

    completion = third.start_blocked(services.complete, job)
    other.commit()
    completion.result(10)

    assert state_of(job) == JobState.COMPLETED


def test_a_batch_waits_for_a_heartbeat_and_still_counts(any_queue, other: Session, third: Session):  # B27
    sent(any_queue, heartbeat_seconds=10)
    [job] = fetched(any_queue)
    other.begin()
    other.run(services.touch, job)

    finishing = third.start_blocked(services.finish_many, [(job, None)])
    other.commit()

    assert finishing.result(10).completed == [job.pk]
    assert state_of(job) == JobState.COMPLETED


@pytest.mark.parametrize("isolation", ("READ COMMITTED", "REPEATABLE READ"))
def test_the_next_goes_when_the_cancel_of_the_head_is_committed(laned_queue, other: Session, isolation):  # I2
    head, second = services.send_many(laned_queue.name, [{"singleton_key": "a"}] * 2)  # the second is born waiting
    other.begin(isolation)
    assert other.run(services.cancel, [head]).cancelled == [head]

    assert fetched(laned_queue) == []

    other.commit()
    assert [job.pk for job in fetched(laned_queue)] == [second]


# -------------------------------------------------------------------------------------------- delete against fetch


@pytest.mark.parametrize("isolation", ("READ COMMITTED", "REPEATABLE READ"))
def test_the_next_goes_when_the_deletion_is_committed_and_not_before(fifo_queue, other: Session, isolation):  # R026
    job = dead(fifo_queue)
    second = sent(fifo_queue)
    other.begin(isolation)
    assert other.run(services.delete, job) == 1

    assert fetched(fifo_queue) == []
    assert state_of(second) == JobState.CREATED

    other.commit()
    assert fetched(fifo_queue) == [second]


def test_a_deletion_that_is_rolled_back_releases_nobody(fifo_queue, other: Session):  # R004
    job = dead(fifo_queue)
    second = sent(fifo_queue)
    before = row_of(job)
    other.begin()
    other.run(services.delete, job)

    other.rollback()

    assert fetched(fifo_queue) == []
    assert (row_of(job), state_of(second)) == (before, JobState.CREATED)


def test_a_deletion_waits_for_a_fetch_that_judges_its_lane(fifo_queue, other: Session, third: Session):  # R005
    job = dead(fifo_queue)
    second = sent(fifo_queue)
    other.begin()
    assert other.run(fetched, fifo_queue) == []

    deletion = third.start_blocked(services.delete, job)
    other.commit()

    assert deletion.result(10) == 1
    assert fetched(fifo_queue) == [second]


def test_the_statements_of_one_message_have_snapshots_of_their_own(fifo_queue, other: Session, third: Session):  # I2
    """A fetch locks keys and looks at their lanes in one message: it must see what was committed before the lock."""

    def lock_and_count() -> Any:
        statements: list[Statement] = [
            ("SELECT pg_advisory_xact_lock(19)", {}),
            ("SELECT count(*) FROM jobqueue_job", {}),
        ]
        return in_transaction("default", lambda: rows_of_each("default", statements, by_name=True)[1][0][0])

    for _ in range(AFTER + 1):  # prepared statements too
        third.run(lock_and_count)
    other.begin()
    other.run(scalar, "SELECT pg_advisory_xact_lock(19)")
    counting = third.start_blocked(lock_and_count)
    other.run(sent, fifo_queue)
    other.commit()

    assert counting.result(DEADLINE) == 1
