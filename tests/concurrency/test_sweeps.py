"""Sweeps beside other sessions: they judge a job again under its lock, and skip jobs that others have locked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import pytest
from django.db import connection

from django_jobqueue import services
from django_jobqueue.engine.recovery import release_due
from django_jobqueue.engine.workers import move_deadlines
from django_jobqueue.models import Job, Queue, Worker
from django_jobqueue.states import JobState
from tests.past import ago, rewrite

from .sessions import DEADLINE, Session
from .steps import fetched, lock_row, row_of, sent, state_of

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

HOUR = 3_600


@pytest.fixture(params=["queue", "fifo_queue"])
def any_queue(request: pytest.FixtureRequest) -> Queue:
    queue: Queue = request.getfixturevalue(request.param)
    return queue


@pytest.fixture
def alive(db: None) -> Worker:
    return Worker.objects.create(name="alive", lost_seconds=HOUR)


@pytest.fixture
def gone(db: None) -> Worker:
    return Worker.objects.create(name="gone", heartbeat_at=ago(minutes=10))


def claimed(queue: Queue, worker: Worker, key: str = "a") -> Job:
    """A new job of this key, in the hands of this worker."""
    sent(queue, key)
    [job] = fetched(queue, worker=worker.name, incarnation=worker.pk)
    return job


# ----------------------------------------------------------------------------------------- a second look under the lock


class Change(NamedTuple):
    """A job that a sweep is to move, and a step of another session after which it must not."""

    prepare: Callable[[Queue, str], Job]
    sweep: Callable[[], object]
    step: Callable[[Job], object]


@pytest.fixture(params=["deadline moved", "completed", "heartbeat sent", "lease renewed", "claimed by another worker"])
def change(request: pytest.FixtureRequest, alive: Worker, gone: Worker) -> Change:
    def overdue(queue: Queue, key: str) -> Job:
        job = claimed(queue, alive, key)
        rewrite(job, expire_at=ago(hours=1))
        return job

    def silent(queue: Queue, key: str) -> Job:
        sent(queue, key, heartbeat_seconds=HOUR)
        [job] = fetched(queue)
        rewrite(job, heartbeat_at=ago(hours=2))
        return job

    def leased(queue: Queue, key: str) -> Job:
        sent(queue, key)
        [job] = fetched(queue, lease=HOUR)
        rewrite(job, lease_until=ago(hours=1))
        return job

    def claim_again(job: Job) -> None:
        services.mark_worker_unresponsive(gone.name)
        assert services.fetch(job.queue_id, worker=alive.name, incarnation=alive.pk) == [job]

    return {
        "deadline moved": Change(
            overdue, services.expire, lambda _: move_deadlines([alive.name], [alive.pk], 5 * HOUR, using="default")
        ),
        "completed": Change(overdue, services.expire, services.complete),
        "heartbeat sent": Change(silent, services.recover_lost, services.touch),
        "lease renewed": Change(leased, release_due, lambda job: services.set_visibility(job, HOUR)),
        "claimed by another worker": Change(
            lambda queue, key: claimed(queue, gone, key), services.recover_lost, claim_again
        ),
    }[request.param]


def test_a_job_that_changes_before_a_sweep_has_locked_it_is_left_alone(any_queue, change: Change, other: Session):
    for moment in count():
        job = change.prepare(any_queue, f"key {moment}")
        acting = ActsBeside(other, partial(changed, job, change.step), after=moment)

        with connection.execute_wrapper(acting):
            change.sweep()

        assert acting.future is not None, "the sweep has locked nothing"
        if acting.waited:
            acting.future.exception(DEADLINE)  # the sweep was first; other tests say what then becomes of the step
            break
        assert row_of(job) == acting.future.result(), f"it had changed after statement {moment} of the sweep"
    assert moment > 1, "the sweep reads which jobs it means before it locks them"


def changed(job: Job, step: Callable[[Job], object]) -> dict[str, Any]:
    """The row after the step."""
    step(job)
    return row_of(job)


class ActsBeside:
    """Has another session take a step right after one statement of ours, and notes whether it had to wait for us."""

    def __init__(self, other: Session, step: Callable[[], dict[str, Any]], *, after: int) -> None:
        self.other, self.step, self.left = other, step, after
        self.future: Future[dict[str, Any]] | None = None
        self.waited = False

    def __call__(self, execute: Any, *args: Any) -> Any:
        result = execute(*args)
        self.left -= 1
        if self.left == -1:  # not again by the statements that look whether the step waits
            self.future = self.other.start(self.step)
            self.other.until_done_or_waiting(self.future)
            self.waited = not self.future.done()
        return result


# -------------------------------------------------------------------------------------- workers whose jobs are locked


@pytest.mark.parametrize("seen_dying", (True, False))
def test_a_lost_worker_is_recorded_as_stopped_only_when_it_holds_no_job(  # R112 B11
    any_queue, alive: Worker, gone: Worker, other: Session, seen_dying
):
    """Housekeeping looks for lost workers that are not recorded as stopped: it would not come back for the job."""
    lost = alive if seen_dying else gone
    idle = Worker.objects.create(name="idle", heartbeat_at=ago(minutes=10))
    job = claimed(any_queue, lost)
    before = row_of(job)
    other.begin()
    other.run(lock_row, job.pk)

    recover = partial(services.recover_lost, [lost.pk] if seen_dying else [])
    assert recover() == {}

    assert row_of(job) == before
    assert (is_stopped(lost), is_stopped(idle)) == (False, True)
    other.rollback()
    assert recover() == {any_queue.name: 1}
    assert state_of(job) == JobState.UNKNOWN_RETRY
    assert is_stopped(lost)


def is_stopped(worker: Worker) -> bool:
    return Worker.objects.filter(pk=worker.pk, stopped_at__isnull=False).exists()
