"""A statement skips the rows that another session has locked, and does its work on the others.

The session under test gives up any wait for a lock after a second, so a statement that waits fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection

from django_jobqueue import services
from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import rows
from django_jobqueue.engine.transactions import at
from django_jobqueue.models import Job, PendingRelease, Queue
from django_jobqueue.partitions import DEFAULT
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.states import Hold, JobState
from tests.engine.statements import CLAIM, place_of
from tests.factories import JobFactory
from tests.past import ago

from .sessions import Session, scalar
from .steps import lock_row

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

OF_CLAIM = {"attempts": [1, 1], "numbers": [7, 7], "outputs": [None, None]}


@dataclass(frozen=True)
class Skipping:
    """A statement for jobs of a queue, the rows it is for, its parameters, and whether it has changed a row."""

    queue: str  # a fixture
    statement: str
    row: dict[str, Any]
    params: Callable[[list[Job]], dict[str, Any]]
    changed: Callable[[Job | None], bool]


def ids(jobs: list[Job]) -> list[Any]:
    return [job.pk for job in jobs]


def places(jobs: list[Job]) -> list[str]:
    return [place_of(job) for job in jobs]


def completion(jobs: list[Job], tids: list[str]) -> dict[str, Any]:
    return {"tids": tids, "ids": ids(jobs), **OF_CLAIM}


def is_active(job: Job | None) -> bool:
    return job is not None and job.state == JobState.ACTIVE


def is_completed(job: Job | None) -> bool:
    return job is not None and job.state == JobState.COMPLETED


def is_free(job: Job | None) -> bool:
    return job is not None and job.hold is None


def is_held(job: Job | None) -> bool:
    return job is not None and job.hold == Hold.LANE


def is_gone(job: Job | None) -> bool:
    return job is None


KEYS = ["a", "b"]
ACTIVE = {"state": JobState.ACTIVE, "claim_number": 7}
IN_LANE = {"hold": Hold.LANE}
OLD = {"state": JobState.COMPLETED, "delete_at": ago(seconds=1)}
DUE = {"hold": Hold.UNTIL, "start_after": ago(seconds=1)}
KNOWN = {"policy": QueuePolicy.STANDARD, "partition": False, "limit": 10}
STATEMENTS = {
    "release due": Skipping("queue", sql.fetch.RELEASE_DUE, DUE, lambda jobs: {"most": 10}, is_free),
    "claim": Skipping("queue", sql.fetch.CLAIM_FRONT, {}, lambda jobs: KNOWN, is_active),
    "claim by group": Skipping(
        "queue", sql.fetch.CLAIM_GROUPED, {},
        lambda jobs: {"keys": KEYS, "places": [0, 1], "tids": places(jobs)}, is_active,
    ),
    "complete": Skipping(
        "queue", sql.finish.COMPLETE, ACTIVE, lambda jobs: completion(jobs, places(jobs)), is_completed
    ),
    "complete what has moved": Skipping(
        "queue", sql.finish.COMPLETE, ACTIVE, lambda jobs: completion(jobs, ["(0,0)"] * 2), is_completed
    ),
    "hand over": Skipping("fifo_queue", sql.finish.HAND_OVER, {}, lambda jobs: {"keys": KEYS, "tags": []}, is_active),
    "hold": Skipping("fifo_queue", sql.lanes.HOLD_LANES, {}, lambda jobs: {"keys": KEYS, "most": 10}, is_held),
    "release in order": Skipping(
        "fifo_queue", sql.lanes.RELEASE_LANES, IN_LANE, lambda jobs: {"keys": KEYS}, is_free
    ),
    "release one": Skipping(
        "singleton_queue", sql.lanes.RELEASE_RUNNING, IN_LANE,
        lambda jobs: {"keys": KEYS, "policy": QueuePolicy.SINGLETON}, is_free,
    ),
    "delete old": Skipping(
        "queue", sql.maintain.DELETE_OLD, OLD, lambda jobs: {"since": "-infinity", "most": 10}, is_gone
    ),
    "delete archived": Skipping(
        "queue", sql.maintain.DELETE_ARCHIVED, OLD,
        lambda jobs: {"ids": ids(jobs), "ended": [job.finalized_at for job in jobs]}, is_gone,
    ),
}  # fmt: skip


@pytest.fixture
def worker(session: Callable[[], Session]) -> Session:
    one = session()
    one.run(run, "SET lock_timeout = '1s'")
    return one


def run(statement: str, params: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


@pytest.mark.parametrize("what", STATEMENTS.values(), ids=STATEMENTS)
def test_rows_that_another_session_has_locked_are_skipped(request, worker: Session, other: Session, what: Skipping):
    queue: Queue = request.getfixturevalue(what.queue)
    jobs = [JobFactory(queue=queue, singleton_key=key, **what.row) for key in KEYS]
    params = {"queue": queue.name, **CLAIM, **what.params(jobs)}
    other.begin()
    other.run(lock_row, jobs[0].pk)

    worker.run(run, at(DEFAULT, what.statement), params)

    now = Job.objects.in_bulk(ids(jobs))
    assert [what.changed(now.get(job.pk)) for job in jobs] == [False, True]


def test_a_candidate_that_another_session_has_locked_is_skipped(fifo_queue, other: Session, worker: Session):
    jobs = [JobFactory(queue=fifo_queue, singleton_key=key) for key in KEYS]
    params = {**KNOWN, **CLAIM, "queue": fifo_queue.name, "policy": fifo_queue.policy, "without": []}
    other.begin()
    other.run(lock_row, jobs[0].pk)

    found = worker.run(rows, "default", at(DEFAULT, sql.fetch.HEADS), params)

    assert [id for _, id, *_ in found] == [jobs[1].pk]


@pytest.mark.parametrize("statement", (sql.workers.RENEW, sql.workers.PROGRESS), ids=("renew", "progress"))
def test_workers_do_not_wait_for_jobs_that_another_session_has_locked(
    queue, other: Session, worker: Session, statement: str
):
    jobs = [JobFactory(queue=queue, heartbeat_seconds=60, heartbeat_at=ago(hours=1), **ACTIVE) for _ in range(2)]
    claims = [[queue.name] * 2, ids(jobs), [job.attempt for job in jobs], [job.claim_number for job in jobs]]
    reports = [[0.5] * 2, ["half"] * 2] if statement == sql.workers.PROGRESS else []
    other.begin()
    other.run(lock_row, jobs[0].pk)

    worker.run(run, statement, [*claims, *reports])

    assert list(Job.objects.filter(heartbeat_at__gt=ago(minutes=1))) == jobs[1:]


def test_pending_lanes_that_another_session_releases_are_skipped(other: Session, worker: Session):
    first, second = (PendingRelease.objects.create(queue="q", policy="singleton", singleton_key=key) for key in KEYS)
    other.begin()
    other.run(scalar, "SELECT id FROM jobqueue_pendingrelease WHERE id = %s FOR UPDATE", first.pk)

    found = worker.run(rows, "default", sql.lanes.PENDING_LANES, {"ids": [first.pk, second.pk]})

    assert [id for id, *_ in found] == [second.pk]


def test_a_pass_of_maintenance_that_another_session_takes_is_not_free(other: Session, worker: Session):
    run(sql.maintain.ENSURE_ROW, [1])
    other.begin()
    assert other.run(rows, "default", sql.maintain.FREE_PASS, [60])

    assert worker.run(rows, "default", sql.maintain.FREE_PASS, [60]) == []


def test_a_lane_is_not_handed_over_to_a_job_that_another_session_has_ended_meanwhile(
    fifo_queue, other: Session, third: Session
):
    job = JobFactory(queue=fifo_queue, singleton_key="a")
    params = {"queue": fifo_queue.name, "keys": ["a"], "tags": [], **CLAIM}
    other.begin()
    other.run(services.cancel, job.pk)

    claim = third.start_blocked(rows, "default", at(DEFAULT, sql.finish.HAND_OVER_HERE), params)
    other.commit()

    assert claim.result() == []
    assert Job.objects.get().state == JobState.CANCELLED
