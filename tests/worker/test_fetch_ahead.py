"""A busy worker claims the next batch while it runs the current one; no job is lost or run twice."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import connection

from django_jobqueue import job, services
from django_jobqueue.handlers import JobContext
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from django_jobqueue.worker.capacity import LANES
from django_jobqueue.worker.child import Child
from django_jobqueue.worker.claims import WorkerIdentity
from django_jobqueue.worker.options import WorkerOptions
from django_jobqueue.worker.slots import Slots
from tests.factories import QueueFactory
from tests.waiting import until

from .conftest import ends, sent

pytestmark = pytest.mark.django_db(transaction=True)

JOBS = 1_500


def fetching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "jobqueue-fetch"]


def fill(handler: Any) -> None:
    item = handler.using().item
    services.send_many(handler.queue, [item() for _ in range(JOBS)])


def unfinished() -> int:
    return Job.objects.exclude(state=JobState.COMPLETED).count()


def test_a_busy_worker_fetches_ahead_and_runs_each_job_once(queue, run):  # R379 R381
    ran: list[int] = []

    @job(queue=queue.name)
    def quick() -> None:
        ran.append(1)

    fill(quick)
    run(queue.name, batch_size=50)
    until(lambda: unfinished() == 0, "all ended")

    assert fetching_threads()
    assert len(ran) == JOBS
    assert set(Job.objects.values_list("attempt", "retry_count")) == {(1, 0)}


def test_a_worker_that_is_not_busy_needs_no_thread_and_no_connection_for_it(queue, run):
    @job(queue=queue.name)
    def quick() -> None: ...

    run(queue.name, batch_size=50)
    ends(quick.send())

    assert not fetching_threads()


def test_what_was_fetched_ahead_goes_back_uncharged_when_the_worker_stops(queue, run):  # R389 B34
    begun = threading.Event()

    @job(queue=queue.name)
    def quick() -> None:
        begun.set()

    fill(quick)
    worker = run(queue.name, batch_size=50)
    assert begun.wait(20)
    until(lambda: Job.objects.in_state(JobState.COMPLETED).count() > 100, "it is busy")

    assert worker.stop(20)

    left = Job.objects.exclude(state=JobState.COMPLETED)
    assert not left.running().exists()
    assert set(left.values_list("retry_count", flat=True)) <= {0}
    run(queue.name, batch_size=50)
    until(lambda: unfinished() == 0, "another does the rest")


def test_a_connection_that_breaks_while_fetching_ahead_loses_nothing(queue, run):  # R381
    @job(queue=queue.name)
    def quick() -> None: ...

    fill(quick)
    run(queue.name, batch_size=20)
    for share in (3, 2):
        until(lambda share=share: unfinished() < JOBS * share // 4, "some ended")  # type: ignore[misc]
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND datname = current_database() AND query LIKE %s",
                ["%jobqueue_job%"],
            )

    until(lambda: unfinished() == 0, "all ended all the same")
    assert set(Job.objects.values_list("retry_count", flat=True)) == {0}


def test_a_handler_of_another_queue_gets_the_whole_job_too(queue, run):
    other = QueueFactory()
    seen: list[Any] = []

    @job(queue=queue.name)
    def plain() -> None: ...

    @job(queue=other.name, takes_context=True)
    def curious(context: JobContext) -> None:
        with_tags = dict(context.job.__dict__)
        seen.append((with_tags["tags"], with_tags["created_at"] is not None))

    run(queue.name)

    ends(sent(queue, name=curious.name, tags=["red"]))
    assert seen == [(["red"], True)]


def test_a_worker_takes_some_lanes_and_leaves_the_others_to_others(fifo_queue, run, gate):
    @job(queue=fifo_queue.name, singleton_key=lambda n: f"k{n}")
    def quick_at_first(n: int) -> None:
        if n >= 50:
            gate.wait()

    item = quick_at_first.using().item
    services.send_many(fifo_queue.name, [item(n) for n in range(50)])
    run(fifo_queue.name)
    until(lambda: unfinished() == 0, "it believes its handlers to be quick")

    services.send_many(fifo_queue.name, [item(n) for n in range(50, 800)])

    assert until(lambda: (taken := Job.objects.running().count()) >= LANES and taken, "it has many") == LANES


def test_a_drain_looks_once_more_although_it_has_just_looked_and_was_woken(queue, transactional_db):
    """A job that failed wakes its own worker for the next attempt, perhaps a moment after the queue was found empty."""

    @job(queue=queue.name)
    def again() -> None:
        pass

    options = WorkerOptions.build(queues=(queue.name,), drain=True)
    child = Child(WorkerIdentity("w", uuid7(), "default"), options, Slots(options.concurrency))
    now = time.monotonic()
    assert not child.prefetcher.fill(now)
    again.send()
    child.poller.notify(queue.name)

    assert not child.prefetcher.is_empty(now)
