"""Waiting for the result of a job: what ends it, what is refused, and one poller for all who wait."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, connections, transaction

from django_jobqueue import services, waiting
from django_jobqueue.exceptions import (
    CannotWait,
    InvalidOption,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobQueueError,
    WaitTimeout,
)
from django_jobqueue.models import Job
from django_jobqueue.waiting import poller
from tests.waiting import until

from . import bad_values
from .lives import refuses_all, sent

PATIENCE = 60.0
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def waits() -> Iterator[Callable[..., Future[Any]]]:
    """Calls that wait, each in a thread, begun when this returns."""
    with ThreadPoolExecutor(20) as pool:

        def begin(wait: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
            before = poller.waiting_count

            def call() -> Any:
                try:
                    return wait(*args, timeout=PATIENCE, **kwargs)
                finally:
                    connections.close_all()

            future = pool.submit(call)
            until(lambda: poller.waiting_count > before or future.done(), "it waits")
            return future

        yield begin


def ended_with(future: Future[Any]) -> Any:
    return future.result(PATIENCE)


# ---------------------------------------------------------------------------------------------------- what ends it


def test_the_output_is_returned_when_the_job_is_completed(queue, waits):
    job = sent(queue)
    waiting = waits(job.result)

    services.complete(services.fetch(queue.name)[0], {"pages": 3})

    assert ended_with(waiting) == {"pages": 3}


def test_a_job_that_has_ended_is_not_waited_for(queue):
    job = sent(queue)
    services.complete(services.fetch(queue.name)[0], 7)

    assert [job.result(timeout=0), services.wait_for(str(job.pk), timeout=0)] == [7, 7]
    assert async_to_sync(services.await_for)(job.pk, timeout=0) == 7


def test_an_async_caller_waits_beside_others(queue, waits):
    job = sent(queue)

    async def wait_and_finish() -> Any:
        waiting = asyncio.ensure_future(job.aresult(timeout=PATIENCE))
        while not poller.waiting_count:
            await asyncio.sleep(0)
        await asyncio.to_thread(finish)
        return await waiting

    def finish() -> None:
        services.complete(services.fetch(queue.name)[0], "done")
        connections.close_all()

    assert async_to_sync(wait_and_finish)() == "done"


def test_an_async_caller_that_is_cancelled_no_longer_waits(queue):
    job = sent(queue)

    async def give_up() -> None:
        waiting = asyncio.ensure_future(job.aresult(timeout=PATIENCE))
        while not poller.waiting_count:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async_to_sync(give_up)()

    assert poller.waiting_count == 0


def test_a_job_that_waits_for_its_retry_has_not_ended(queue, waits):
    job = sent(queue, retry_limit=1)
    waiting = waits(job.result)

    assert services.fail(services.fetch(queue.name)[0], "the card was refused").will_retry
    polls = poller.polls
    until(lambda: poller.polls > polls + 1, "the poller has looked again")
    assert not waiting.done()
    services.fail(services.fetch(queue.name)[0], ValueError("the card has expired"))

    with pytest.raises(JobFailed, match=r"failed for good: .*the card has expired") as caught:
        ended_with(waiting)
    assert (caught.value.job_id, caught.value.state) == (job.pk, "failed")
    assert "the card has expired" in caught.value.error


def skip(job: Job) -> None:
    services.fail(services.fetch(job.queue_id)[0], "no", for_good=True)
    services.skip(job.pk, reason="refunded")


ENDS: dict[str, tuple[Callable[[Job], object], type[JobQueueError], str]] = {
    "cancelled": (lambda job: services.cancel([job.pk]), JobCancelled, "because it was cancelled"),
    "stopped": (lambda job: services.stop(services.fetch(job.queue_id)[0], "no need"), JobCancelled, "stopped"),
    "deleted": (lambda job: services.delete_queue(job.queue_id), JobNotFound, "There is no job"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_job_without_a_result_is_an_error_of_its_own(queue, waits, end):
    ends, error, text = ENDS[end]
    job = sent(queue)
    waiting = waits(job.result)

    ends(job)

    with pytest.raises(error, match=text):
        ended_with(waiting)


def test_a_job_that_was_skipped_has_no_result(queue):
    job = sent(queue)
    skip(job)

    with pytest.raises(JobCancelled, match=r"because it was stopped, .*refunded"):
        job.result(timeout=0)


def test_a_job_that_does_not_exist_is_not_waited_for(db):
    with pytest.raises(JobNotFound):
        services.wait_for(uuid4())
    with pytest.raises(InvalidOption):
        services.wait_for("no id")


def test_after_the_timeout_the_job_goes_on(queue):
    job = sent(queue)

    with pytest.raises(TimeoutError, match=r"did not end within 0\.05 seconds") as caught:
        job.result(timeout=0.05)
    with pytest.raises(WaitTimeout):
        async_to_sync(job.aresult)(timeout=0.05)

    assert isinstance(caught.value, JobQueueError)
    assert services.get_job(job.pk).state == "created"
    assert poller.waiting_count == 0


@pytest.mark.parametrize("wrong", (-1, "soon", float("nan"), True))
def test_a_timeout_is_a_number_of_seconds(queue, wrong):
    with pytest.raises(InvalidOption, match="timeout"):
        sent(queue).result(timeout=wrong)


# ------------------------------------------------------------------------------------------------- what is refused


def test_a_job_of_the_open_transaction_is_not_waited_for(queue):
    with transaction.atomic():
        job = sent(queue)
        with pytest.raises(CannotWait, match="sent or changed in this transaction"):
            job.result()
        with transaction.atomic(), pytest.raises(CannotWait):  # a savepoint is the same transaction
            services.wait_for(job.pk)

        services.complete(services.fetch(queue.name)[0], "as in a test")
        assert job.result() == "as in a test"


def test_a_job_that_the_open_transaction_retries_is_not_waited_for(queue):
    job = sent(queue)
    services.fail(services.fetch(queue.name)[0], "no", for_good=True)

    with transaction.atomic():
        services.retry(job.pk)
        with pytest.raises(CannotWait):
            job.result()


def test_a_job_of_an_earlier_transaction_is_waited_for(queue, waits):
    job = sent(queue)

    def wait_in_transaction(timeout: float) -> Any:
        with transaction.atomic():
            sent(queue)  # this transaction has a number too
            return job.result(timeout=timeout)

    waiting = waits(wait_in_transaction)
    services.complete(services.fetch(queue.name)[0], 1)

    assert ended_with(waiting) == 1


@pytest.mark.parametrize("level", ("REPEATABLE READ", "SERIALIZABLE"))
def test_a_transaction_that_never_sees_the_result_does_not_wait(queue, level):
    job = sent(queue)

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        with pytest.raises(CannotWait, match=level):
            job.result()


def test_after_the_commit_the_job_is_waited_for(queue, waits):
    waiting: list[Future[Any]] = []
    with transaction.atomic():
        job = sent(queue)
        transaction.on_commit(lambda: waiting.append(waits(job.result)))

    services.complete(services.fetch(queue.name)[0], 2)

    assert ended_with(waiting[0]) == 2


# ------------------------------------------------------------------------------------------------------- one poller


def test_one_thread_and_one_query_ask_for_all(queue, waits, monkeypatch):
    asked: list[int] = []
    threads: set[str] = set()
    ask = waiting.endings_of

    def counted(using: str, ids: Any) -> Any:
        if threading.current_thread().name == "jobqueue-results":
            asked.append(len(set(ids)))
            threads.add(f"{threading.get_ident()}")
        return ask(using, ids)

    monkeypatch.setattr(waiting, "endings_of", counted)
    jobs = [sent(queue) for _ in range(10)]
    waitings = [waits(job.result) for job in jobs] + [waits(jobs[0].result)]
    until(lambda: asked and asked[-1] == 10, "one query asks for all")
    for job in services.fetch(queue.name, limit=10):
        services.complete(job, str(job.pk))

    assert [ended_with(one) for one in waitings] == [str(job.pk) for job in [*jobs, jobs[0]]]
    assert len(threads) == 1


def test_the_thread_and_its_connection_end_with_the_last_who_waits(queue, waits):
    job = sent(queue)
    waiting = waits(job.result)
    services.complete(services.fetch(queue.name)[0], 1)
    ended_with(waiting)

    until(lambda: "jobqueue-results" not in {thread.name for thread in threading.enumerate()}, "the thread has ended")
    with pytest.raises(WaitTimeout):
        sent(queue).result(timeout=0.01)  # begins another
    until(lambda: "jobqueue-results" not in {thread.name for thread in threading.enumerate()}, "the thread has ended")


def test_polls_become_rarer():
    began = time.monotonic()
    waiter = waiting.Waiter("default", uuid4(), since=began, polled_at=began)
    pauses = []
    for age in (0.0, 1.0, 5.0, 600.0):
        waiter.polled_at = began + age
        pauses.append(round(waiter.due - waiter.polled_at, 6))

    assert pauses == [waiting.SHORTEST, 0.1, 0.5, waiting.LONGEST]


def test_a_lost_connection_does_not_end_the_waiting(queue, waits, monkeypatch):
    pids: list[int] = []
    ask = waiting.endings_of

    def noted(using: str, ids: Any) -> Any:
        try:
            return ask(using, ids)
        finally:
            if threading.current_thread().name == "jobqueue-results" and connections[using].connection:
                pids.append(connections[using].connection.info.backend_pid)

    monkeypatch.setattr(waiting, "endings_of", noted)
    job = sent(queue)
    result = waits(job.result)
    until(lambda: pids, "the poller has a connection")

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pids[0]])
    until(lambda: pids[-1] != pids[0], "the poller has another connection")
    services.complete(services.fetch(queue.name)[0], "after all")

    assert ended_with(result) == "after all"


def test_a_database_that_stays_away_is_an_error(queue, waits, monkeypatch):
    job = sent(queue)
    ask = waiting.endings_of

    def gone(using: str, ids: Any) -> Any:
        if threading.current_thread().name == "jobqueue-results":
            raise OperationalError("the server has gone")
        return ask(using, ids)

    monkeypatch.setattr(waiting, "endings_of", gone)
    monkeypatch.setattr(waiting, "OUTAGE_SECONDS", 0.05)

    with pytest.raises(OperationalError, match="the server has gone"):
        ended_with(waits(job.result))


def test_a_fork_waits_with_a_thread_of_its_own(queue, waits):
    job = sent(queue)
    waiting = waits(job.result)  # the parent has a thread, a lock and a connection

    pid = os.fork()
    if pid == 0:
        for one in connections.all():
            one.connection = None  # that of the parent
        try:
            os._exit(0 if job.result(timeout=PATIENCE) == 5 else 1)
        except BaseException:
            os._exit(2)
    services.complete(services.fetch(queue.name)[0], 5)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ended_with(waiting) == 5


@pytest.mark.parametrize("verb", (services.wait_for, async_to_sync(services.await_for)), ids=("wait_for", "await_for"))
def test_a_bad_id_is_refused(verb):
    refuses_all(lambda value: verb(value, timeout=0), bad_values.IDS, InvalidOption, option="id")
