"""Locks of other sessions, and cancellations that a handler ignores: a living worker keeps what it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.test import override_settings

from django_jobqueue import services
from django_jobqueue.models import Job, Worker
from django_jobqueue.states import JobState
from tests.past import ago, reread, rewrite
from tests.waiting import until

from .conftest import LANES, ends, runs, send
from .history import History
from .runner import QUICK, database_dsn

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def locked_table() -> Iterator[None]:
    """Nothing else reads or writes jobs until the end of the block."""
    with transaction.atomic():
        until(_lock_table, "the table is locked")
        yield


def _lock_table() -> bool:
    """Its parts are locked one after the other, and a worker that locks them in another order may win."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE jobqueue_job")
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
            raise
        return False
    return True


def beats_go_on(seconds: float) -> None:
    """Wait until every worker has sent heartbeats for so long."""
    first = {worker.pk: worker.heartbeat_at for worker in Worker.objects.filter(stopped_at=None)}

    def all_later() -> bool:
        now = dict(Worker.objects.filter(pk__in=first).values_list("pk", "heartbeat_at"))
        return all(now[pk] - at > timedelta(seconds=seconds) for pk, at in first.items())

    until(all_later, "workers sent heartbeats while the table was locked")


# ---------------------------------------------------------------------------------------------- locks: F78 F79


@pytest.mark.parametrize("name", ("lane-work", "lane-atomic"))
def test_a_locked_next_row_delays_its_lane_until_it_is_unlocked_and_no_other(start, history, gates, name):
    worker = start("--concurrency", "2")  # F78 F79 G20
    job, following = send(name, {"gate": "go"}, queue=LANES), send(name, queue=LANES)
    runs(history, job)
    until(lambda: reread(following).hold == "lane", "the job behind it is held")

    with psycopg.connect(database_dsn()) as other:
        other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [following.pk])
        gates.open("go")
        ends(job, JobState.COMPLETED)
        for number in range(10):
            ends(send(name, queue=LANES, singleton_key=f"k{number}"), JobState.COMPLETED)
        assert history.begun(following) == 0
        other.rollback()

    ends(following, JobState.COMPLETED)  # the housekeeping process releases it
    assert not worker.says("stranded")
    assert not worker.says(" ERROR ")


# ----------------------------------------------------------------------------------------------------- locks: F86


@pytest.mark.parametrize("workers", (1, 2))
def test_a_table_locked_longer_than_a_heartbeat_takes_no_job_from_a_living_handler(
    start, history, gates, workers
):  # F86
    started = [start("--concurrency", "1") for _ in range(workers)]
    before = [worker.children() for worker in started]
    jobs = [send("work", {"gate": "go"}, heartbeat_seconds=10) for _ in range(workers)]
    for job in jobs:
        runs(history, job)

    with locked_table():
        for job in jobs:
            rewrite(job, heartbeat_at=ago(hours=1))  # as if the table had been locked for so long
        beats_go_on(2 * QUICK["WORKER_FENCE_SECONDS"])
        assert services.recover_lost() == {}  # what every housekeeping process does next
    until(
        lambda: not Job.objects.filter(state=JobState.ACTIVE, heartbeat_at__lte=ago(seconds=10)).exists(),
        "the heartbeats of the jobs are sent",
    )
    gates.open("go")

    for job in jobs:
        assert ends(job, JobState.COMPLETED).attempt == 1
        assert history.begun(job) == 1
    assert [worker.children() for worker in started] == before


def test_a_job_whose_worker_is_gone_is_recovered_by_its_heartbeat(start, history, gates):  # F86: not by accident
    worker = start("--concurrency", "1")
    job = send("work", {"gate": "go"}, heartbeat_seconds=10)
    runs(history, job)
    rewrite(job, incarnation=None, heartbeat_at=ago(hours=1))  # as one that no process of a worker holds

    services.recover_lost()

    assert reread(job).state == JobState.UNKNOWN_RETRY
    gates.open("go")
    assert worker.process.poll() is None


# -------------------------------------------------------------------------------------------- cancellations: F77


def cancelled(history: History, **options: object) -> tuple[Job, Job]:
    """A handler that ignores its cancellation for longer than it is given, and a job that waits behind it."""
    job = send("lane-work", {"gate": "go"}, queue=LANES, **options)
    behind = send("lane-work", queue=LANES)
    runs(history, job)
    services.cancel(job.pk)
    rewrite(job, cancel_requested_at=ago(hours=1))
    return job, behind


def sweep() -> None:
    """What every housekeeping process does, with the same settings."""
    with override_settings(JOBQUEUE={**QUICK, "CANCEL_GRACE_SECONDS": 1}):
        services.expire()
        services.recover_lost()
        services.check_lanes()


def test_a_lane_stays_closed_while_a_handler_ignores_its_cancellation(start, history, gates):  # F77
    start("--concurrency", "2", CANCEL_GRACE_SECONDS=1)
    job, behind = cancelled(history)

    sweep()
    beats_go_on(2.0)  # so that the worker's own sweep, every second, has also run
    sweep()

    assert reread(job).state == JobState.CANCELLING
    assert history.begun(behind) == 0
    gates.open("go")
    ends(behind, JobState.COMPLETED)
    (first,), (second,) = history.runs(job), history.runs(behind)
    assert first.ended is not None
    assert first.ended <= second.began
    assert reread(job).attempt == 1


def test_a_handler_that_ignores_its_cancellation_is_ended_when_it_expires(start, history, gates):  # F77
    start("--concurrency", "2", CANCEL_GRACE_SECONDS=1)
    job, behind = cancelled(history, expire_in_seconds=2, retry_limit=0)

    ends(behind, JobState.COMPLETED, 30)

    (first,), (second,) = history.runs(job), history.runs(behind)
    assert first.ended is not None, "its handler was stopped by an exception"
    assert first.ended <= second.began
    assert reread(job).state != JobState.CANCELLING


def test_a_cancelled_job_whose_worker_is_gone_opens_its_lane(start, history, gates):  # F77
    worker = start("--concurrency", "2", CANCEL_GRACE_SECONDS=1)
    job, behind = cancelled(history)

    worker.kill_all()
    worker.ended()
    start("--concurrency", "2", CANCEL_GRACE_SECONDS=1)

    ends(behind, JobState.COMPLETED, 30)
    assert reread(job).state == JobState.UNKNOWN_STOPPED
