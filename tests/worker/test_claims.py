"""What a child does with claims that were lost, and with jobs that begin long after they were claimed."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import DatabaseError, connection

from django_jobqueue import job, services
from django_jobqueue.handlers import JobContext, JobExpired
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job
from django_jobqueue.worker import dispatch
from django_jobqueue.worker.child import Child
from django_jobqueue.worker.claims import WorkerIdentity
from django_jobqueue.worker.options import WorkerOptions
from django_jobqueue.worker.slots import Slots
from tests.past import reread
from tests.waiting import PATIENCE, until

from .conftest import ends, sent


def set_row(job: Job, **values: Any) -> None:
    Job.objects.filter(pk=job.pk).update(**values)


def terminate_sessions() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


class Log:
    """Starts and ends of handlers, in their order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self.lock:
            self.lines.append(line)


@pytest.mark.parametrize("is_reconnected", (False, True), ids=("compared", "reconnected"))
def test_a_job_is_returned_only_after_the_handler_of_its_lost_successor_has_ended(  # F73
    fifo_queue, run, gate, is_reconnected
):
    log = Log()

    @job(queue=fifo_queue.name)
    def work(n: int, again: bool = False) -> None:
        log(f"{n} begins")
        if n == 2 and not gate.opened.is_set():
            gate.reached.set()
            try:
                while True:
                    time.sleep(0.01)
            except JobExpired:
                gate.opened.set()
                time.sleep(1.5)  # it takes longer to stop than the next comparison with the database
                log("2 ends late")
                raise
        log(f"{n} ends")

    one, two = (sent(fifo_queue, {"n": n}, name=work.name, singleton_key="a") for n in (1, 2))
    run(fifo_queue.name)
    assert gate.reached.wait(PATIENCE)
    first, second = reread(one), reread(two)
    # What a standby that lacks the hand-over has: the first job is active, and the second one waits.
    set_row(second, state="created", attempt=0, hold="lane", assignee="", incarnation=None, started_at=None)
    set_row(first, state="active", finalized_at=None, delete_at=None)
    if is_reconnected:
        terminate_sessions()

    ends(two)

    assert log.lines == [
        "1 begins", "1 ends", "2 begins", "2 ends late", "1 begins", "1 ends", "2 begins", "2 ends",
    ]  # fmt: skip
    assert reread(two).retry_count == 0


def test_a_handler_without_a_context_is_interrupted_when_its_claim_is_lost(queue, run, gate):  # F6
    begun: list[int] = []

    @job(queue=queue.name)
    def deaf() -> None:
        begun.append(1)
        if len(begun) > 1:
            return
        gate.reached.set()
        try:
            while True:
                time.sleep(0.01)
        finally:
            gate.opened.set()

    run(queue.name)
    one = deaf.send()
    assert one is not None
    assert gate.reached.wait(PATIENCE)

    services.mark_worker_unresponsive(reread(one).assignee)

    assert gate.opened.wait(PATIENCE)
    assert ends(one).attempt == 2


@pytest.fixture
def suspects(queue, monkeypatch):
    """Two jobs that run alone, because one more crash would be their last; and a handler that holds the first."""
    monkeypatch.setattr(dispatch, "SUSPECT_SECONDS", 0.5)
    runs: list[int] = []
    held = threading.Event()

    @job(queue=queue.name)
    def risky(n: int) -> None:
        runs.append(n)
        if n == 1:
            held.wait(PATIENCE)

    jobs = [sent(queue, {"n": n}, name=risky.name) for n in (1, 2)]
    Job.objects.filter(queue=queue).update(crashes=2)
    yield jobs, runs, held
    held.set()


def test_a_job_that_waits_long_to_run_alone_goes_back_uncharged(suspects, queue, run):  # F76
    (one, two), runs, held = suspects
    run(queue.name, concurrency=2)

    until(lambda: reread(two).state == "retry", "the second one has returned to the queue")

    assert (reread(two).retry_count, reread(two).crashes, runs) == (0, 2, [1])
    held.set()
    assert [ends(one).retry_count, ends(two).retry_count] == [0, 0]
    assert runs == [1, 2]


def test_a_job_that_was_finished_while_it_waited_to_run_alone_is_not_begun(  # F76
    suspects, queue, run, monkeypatch
):
    monkeypatch.setattr(dispatch, "SUSPECT_SECONDS", 60.0)
    (one, two), runs, held = suspects
    run(queue.name, concurrency=2)
    until(lambda: reread(two).state == "active" and runs == [1], "both are claimed, one runs")

    services.complete(two.pk, "elsewhere")
    held.set()

    ends(one)
    three = services.send(queue.name, {"n": 3}, name=two.name)
    ends(three)
    assert runs == [1, 3]
    assert reread(two).output == "elsewhere"


def test_a_job_begins_alone_with_its_whole_time_in_the_database_too(suspects, queue, run, monkeypatch):  # F76
    monkeypatch.setattr(dispatch, "SUSPECT_SECONDS", 60.0)
    (one, two), runs, held = suspects
    run(queue.name, concurrency=2)
    until(lambda: reread(two).state == "active" and runs == [1], "both are claimed, one runs")
    before = reread(two).expire_at

    held.set()

    after = ends(two).expire_at
    assert before is not None
    assert after is not None
    assert after > before
    assert runs == [1, 2]
    ends(one)


def test_a_job_that_begins_late_has_its_whole_time(queue, run):  # F76
    first = threading.Event()

    @job(queue=queue.name)
    def quick(n: int) -> None:
        if n == 1:
            first.set()
            time.sleep(0.6)
        elif n == 2:
            deadline = time.monotonic() + 0.8
            while time.monotonic() < deadline:
                time.sleep(0.01)

    run(queue.name, concurrency=1)
    ends(services.send(queue.name, {"n": 0}, name=quick.name))  # so that it knows how quick they are
    ids = services.send_many(
        queue.name, [{"data": {"n": n}, "name": quick.name, "expire_in_seconds": 1} for n in (1, 2)]
    )

    done = [ends(services.get_job(id)) for id in ids if id is not None]

    assert [(one.attempt, one.retry_count) for one in done] == [(1, 0), (1, 0)]


def test_jobs_claimed_ahead_that_waited_are_verified_before_they_begin(queue, transactional_db):  # F76
    """While a suspect runs alone nothing else begins, however long it takes."""

    @job(queue=queue.name)
    def plain() -> None:
        pass

    for _ in range(2):
        plain.send()
    options = WorkerOptions.build(queues=(queue.name,))
    child = Child(WorkerIdentity("w", uuid7(), "default"), options, Slots(options.concurrency))
    ours, lost = services.fetch(queue.name, 2, worker="w", incarnation=child.identity.incarnation)
    services.complete(lost.pk)
    before = reread(ours).expire_at
    child.claims.prefetched = [ours, lost]
    child.claims.jobs.update({one.id: one for one in (ours, lost)})
    child.prefetcher._ahead_at = time.monotonic() - 1

    child.prefetcher._begin_prefetched(time.monotonic())

    assert [item[0] for item in child.executor.ready.get_nowait() or ()] == [ours]
    assert child.executor.ready.empty()
    after = reread(ours).expire_at
    assert before is not None
    assert after is not None
    assert after > before


# ------------------------------------------------------- the connection breaks between a claim and the begin


@pytest.fixture
def child(queue, transactional_db):
    """A child that is not running, whose connection the test can break."""
    options = WorkerOptions.build(queues=(queue.name,))
    return Child(WorkerIdentity("w", uuid7(), "default"), options, Slots(options.concurrency))


def claimed(child: Child, number: int = 2, **values: Any) -> list[Job]:
    (queue,) = child.options.queues
    for _ in range(number):
        sent(queue, name="elsewhere")
    Job.objects.filter(queue=queue).update(**values)
    return services.fetch(queue, number, worker="w", incarnation=child.identity.incarnation, whole=False)


def lose_connection() -> None:
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def is_reconnected(child: Child, error: Exception) -> None:
    child._lose_database(error)
    child._verify_server()


def test_jobs_whose_columns_could_not_be_read_go_back_when_the_database_is_back(child):
    """A nemesis found them: they were held, never begun, and kept their keys until they expired."""

    @job(queue="of-another-queue", name="elsewhere", takes_context=True)
    def elsewhere(context: JobContext) -> None:
        pass

    child.dispatcher.handler = elsewhere
    jobs = claimed(child)
    lose_connection()

    with pytest.raises(DatabaseError) as raised:
        child.dispatcher.begin(jobs)
    is_reconnected(child, raised.value)

    assert child.claims.jobs == {}
    assert child.executor.ready.empty()
    assert [(reread(one).state, reread(one).retry_count) for one in jobs] == [("retry", 0)] * 2


def test_jobs_claimed_ahead_wait_until_the_database_can_verify_them(child):
    @job(queue=child.options.queues[0], name="elsewhere")
    def elsewhere() -> None:
        pass

    jobs = claimed(child)
    child.claims.prefetched = list(jobs)
    child.claims.jobs.update({one.id: one for one in jobs})
    child.prefetcher._ahead_at = time.monotonic() - 1
    lose_connection()

    with pytest.raises(DatabaseError) as raised:
        child.prefetcher._begin_prefetched(time.monotonic())
    is_reconnected(child, raised.value)
    assert child.prefetcher._begin_prefetched(time.monotonic())

    begun = [item[0] for _ in jobs for item in child.executor.ready.get_nowait() or ()]
    assert begun == jobs


def test_a_claim_that_was_fetched_ahead_and_lost_with_the_connection_is_not_begun(child):
    @job(queue=child.options.queues[0], name="elsewhere")
    def elsewhere() -> None:
        pass

    ours, lost = claimed(child)
    child.claims.prefetched = [ours, lost]
    child.claims.jobs.update({one.id: one for one in (ours, lost)})
    child.prefetcher._ahead_at = time.monotonic()
    services.complete(lost.pk)

    is_reconnected(child, DatabaseError("gone"))
    child.prefetcher._begin_prefetched(time.monotonic())

    assert [item[0] for item in child.executor.ready.get_nowait() or ()] == [ours]
    assert child.executor.ready.empty()


def test_a_job_that_is_to_run_alone_waits_until_the_database_can_verify_it(child):
    @job(queue=child.options.queues[0], name="elsewhere")
    def elsewhere() -> None:
        pass

    (suspect,) = claimed(child, 1, crashes=2)
    child.dispatcher.begin([suspect])
    lose_connection()

    with pytest.raises(DatabaseError) as raised:
        child._begin_more(time.monotonic())
    is_reconnected(child, raised.value)
    assert child._begin_more(time.monotonic())

    assert [item[0] for item in child.executor.ready.get_nowait() or ()] == [suspect]


# --------------------------------------------------------------------------------- a child that begins no more jobs


def prefetch(child: Child) -> list[Job]:
    jobs = claimed(child)
    child.claims.prefetched = list(jobs)
    child.claims.jobs.update({one.id: one for one in jobs})
    return jobs


def test_jobs_claimed_ahead_are_given_back_when_the_child_stops_and_do_not_keep_it_waiting(child):
    """They would never begin, and the child would wait for them until its grace period is over."""
    jobs = prefetch(child)
    child.stop()

    child._turn()

    assert child._is_over()
    assert [(reread(one).state, reread(one).retry_count) for one in jobs] == [("retry", 0)] * 2


def test_a_child_that_stops_sleeps_although_jobs_wait_in_its_queue(child):
    """Its loop would come round without a pause until the last handler has ended."""
    prefetch(child)
    child.poller.refresh_if_old(time.monotonic())
    assert child._idle_seconds() == 0

    child.stop()

    assert child._idle_seconds() > 0


def test_a_child_sleeps_while_a_suspect_runs_alone_and_jobs_claimed_ahead_wait(child):
    @job(queue=child.options.queues[0], name="elsewhere")
    def elsewhere() -> None:
        pass

    (suspect,) = claimed(child, 1, crashes=2)
    child.dispatcher.begin([suspect])
    assert child._begin_more(time.monotonic())
    Job.objects.update(crashes=0)

    prefetch(child)

    assert child._idle_seconds() > 0
