"""Each condition of the statements with which workers write, with a row that only that one leaves out."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connection

from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import execute, rows
from django_jobqueue.expressions import WORKER_LOCK, HasSessionLock
from django_jobqueue.models import Job, Queue, Worker
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago

pytestmark = pytest.mark.django_db

NUMBER = 7


def running(queue: Queue, **options: Any) -> Job:
    return JobFactory(queue=queue, **{"state": JobState.ACTIVE, "claim_number": NUMBER, "expire_at": ago()} | options)


def claims_of(queue: Queue) -> tuple[list[str], list[Any], list[int], list[int]]:
    """Claims as arrays: one that is valid, and those that each differ from a valid one in one respect."""
    other = QueueFactory()
    valid, of_other_queue, of_other_attempt, of_other_number, ended = (running(queue) for _ in range(5))
    Job.objects.filter(pk=ended.pk).update(state=JobState.RETRY)
    jobs = [valid, of_other_queue, of_other_attempt, of_other_number, ended]
    return (
        [other.name if job == of_other_queue else queue.name for job in jobs],
        [job.pk for job in jobs],
        [job.attempt + (job == of_other_attempt) for job in jobs],
        [NUMBER + (job == of_other_number) for job in jobs],
    )


def test_only_valid_claims_are_renewed(queue):
    claims = claims_of(queue)

    assert rows("default", sql.workers.RENEW, claims) == [(1,)]


def test_only_the_named_jobs_are_renewed(queue):
    first, second = running(queue), running(queue)

    rows("default", sql.workers.RENEW, [[queue.name], [second.pk], [second.attempt], [NUMBER]])

    assert Job.objects.get(pk=first.pk).expire_at == first.expire_at
    assert Job.objects.get(pk=second.pk).expire_at != second.expire_at


def test_only_valid_claims_report_progress(queue):
    names, ids, attempts, numbers = claims_of(queue)

    execute("default", sql.workers.PROGRESS, [names, ids, attempts, numbers, [0.5] * 5, ["half"] * 5])

    assert [job.pk for job in Job.objects.filter(progress=0.5)] == ids[:1]


def test_only_the_named_jobs_report_progress(queue):
    running(queue)
    second = running(queue)
    claim = [[queue.name], [second.pk], [second.attempt], [NUMBER]]

    execute("default", sql.workers.PROGRESS, [*claim, [0.5], ["half"]])

    assert [job.pk for job in Job.objects.filter(progress=0.5)] == [second.pk]


def test_only_the_named_workers_beat_unless_they_were_declared_lost(db):
    workers = [Worker.objects.create(name=name) for name in ("named", "lost", "another")]
    Worker.objects.update(heartbeat_at=ago(hours=1))
    Worker.objects.filter(name="lost").update(stopped_at=ago())

    found = rows("default", sql.workers.BEAT, [[worker.pk for worker in workers[:2]], ["{}", "{}"]])

    assert found == [(workers[0].pk, False)]
    assert [worker.name for worker in Worker.objects.filter(heartbeat_at__gt=ago(minutes=1))] == ["named"]


@pytest.mark.parametrize("lock", ("of this worker", "of two numbers", "in another database"))
def test_only_its_session_lock_in_this_database_shows_that_a_worker_lives(db, lock):
    worker = Worker.objects.create(name="w")
    settings = connection.settings_dict
    address = {"host": settings["HOST"], "port": settings["PORT"], "user": settings["USER"]}
    name = "postgres" if lock == "in another database" else str(settings["NAME"])
    number = f"SELECT {WORKER_LOCK.format('%(id)s::text')} AS number"
    halves = "pg_advisory_lock((number >> 32)::int, (number::bit(64) << 32)::bit(32)::int)"
    taken = halves if lock == "of two numbers" else "pg_advisory_lock(number)"

    with psycopg.connect(**address, dbname=name) as other:
        other.execute(f"SELECT {taken} FROM ({number}) hashed", {"id": str(worker.pk)})

        found = Worker.objects.filter(HasSessionLock("id"))
        assert list(found) == ([worker] if lock == "of this worker" else [])
