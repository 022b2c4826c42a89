"""A job brought into each state by the verbs alone, and what the database held before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobqueue import services
from django_jobqueue.exceptions import JobQueueError
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import FINAL, JobState

WORKER = "w1"
_numbers = count(1)


def sent(queue: Queue | str, data: Any = None, **options: Any) -> Job:
    """A job that was sent; the test means it to be stored."""
    job: Job | None = services.send(str(queue), data, **options)
    assert job is not None
    return job


def claimed(queue: Queue | str, data: Any = None, *, worker: str = WORKER, **options: Any) -> Job:
    """A job as its worker holds it, whatever else waits in the queue."""
    number = next(_numbers)
    key = {} if "singleton_key" in options else {"singleton_key": f"key {number}"}
    job = sent(queue, data, **{"priority": number} | key | options)
    fetched = services.fetch(str(queue), worker=worker)
    assert fetched == [job]
    return fetched[0]


def job_in(state: JobState, queue: Queue | str, **options: Any) -> Job:
    """A job in this state, as the database has it."""
    job = _waiting(queue, **options) if state in (JobState.CREATED, JobState.CANCELLED) else None
    job = _LIVES[state](job or queue, **options)
    found = now(job)
    assert found.state == state
    return found


def now(job: Job) -> Job:
    """The job as the database has it."""
    return services.get_job(job.pk)


def holds(worker: str = WORKER) -> set[Any]:
    """The ids of the jobs that fill this worker's capacity."""
    return set(Job.objects.assigned_to(worker).running().values_list("pk", flat=True))


def _waiting(queue: Queue | str, **options: Any) -> Job:
    number = next(_numbers)
    key = {} if "singleton_key" in options else {"singleton_key": f"key {number}"}
    options.pop("worker", None)
    return sent(queue, **{"priority": number} | key | options)


def _cancelled(job: Any, **options: Any) -> Job:
    services.cancel(job)
    return job  # type: ignore[no-any-return]


def _after(verb: Callable[[Job], object]) -> Callable[..., Job]:
    def live(queue: Any, **options: Any) -> Job:
        job = claimed(queue, **options)
        verb(job)
        return job

    return live


def _lost(queue: Any, **options: Any) -> Job:
    job = claimed(queue, **{"worker": f"lost {next(_numbers)}"} | options)
    services.mark_worker_unresponsive(job.assignee)
    return job


def _expired(queue: Any, **options: Any) -> Job:
    job = claimed(queue, **{"retry_limit": 0} | options)
    in_the_past(job, "expire_at")
    services.expire()
    return job


_LIVES: dict[JobState, Callable[..., Job]] = {
    JobState.CREATED: lambda job, **_: job,
    JobState.CANCELLED: _cancelled,
    JobState.ACTIVE: claimed,
    JobState.RETRY: _after(lambda job: services.fail(job, "boom")),
    JobState.UNKNOWN_RETRY: _lost,
    JobState.CANCELLING: _after(services.cancel),
    JobState.COMPLETED: _after(lambda job: services.complete(job, {"done": 1})),
    JobState.FAILED: _after(lambda job: services.fail(job, "boom", for_good=True)),
    JobState.EXPIRED: _expired,
    JobState.STOPPED: _after(services.stop),
    JobState.UNKNOWN_STOPPED: _after(services.mark_unknown_stopped),
}


def in_the_past(job: Job, *columns: str, interval: str = "1 hour") -> None:
    """Move these times of a job back."""
    moved = ", ".join(f"{column} = {column} - interval '{interval}'" for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE jobqueue_job SET {moved} WHERE id = %s", [job.pk])


@contextmanager
def rolled_back() -> Iterator[None]:
    """A caller's transaction that is given up in the end."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def read_only() -> Iterator[None]:
    """A caller's transaction in which the database refuses every write."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        yield


def snapshot() -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the tables that verbs write."""
    tables = {"jobqueue_job": "seq", "jobqueue_queue": "name", "jobqueue_operation": "id", "jobqueue_worker": "id"}
    found = {}
    with connection.cursor() as cursor:
        for table, order in tables.items():
            cursor.execute(f"SELECT * FROM {table} ORDER BY {order}")
            found[table] = cursor.fetchall()
    return found


@contextmanager
def refused(*errors: type[JobQueueError]) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Inside ``atomic()``: one of these errors, nothing changed, and the transaction is usable after it."""
    before = snapshot()
    with transaction.atomic():
        with pytest.raises(errors) as caught:
            yield caught
        assert type(caught.value) in errors
        assert snapshot() == before  # the first statements after the error, in the same transaction
        assert (connection.needs_rollback, Queue.objects.filter(pk="default").count()) == (False, 1)
    assert snapshot() == before


def refuses_all(
    call: Callable[[Any], object], values: Iterable[Any], *errors: type[JobQueueError], **facts: object
) -> None:
    """Each of these values is refused with one of these errors, which carries these facts; accepted ones are listed."""
    wrong = []
    for value in values:
        try:
            with refused(*errors) as caught:
                call(value)
            found = {name: getattr(caught.value, name) for name in facts}
            assert found == facts
            assert len(str(caught.value)) < 700
        except (Exception, pytest.fail.Exception) as error:
            text = str(error).strip()
            wrong.append(f"{shown(value)}: {type(error).__name__} {text.splitlines()[0][:150] if text else ''}")
    assert not wrong, "\n".join(wrong)


def check_lawful(job: Job) -> None:
    """What holds for every job at all times, I4 to I6."""
    found = now(job)
    assert (found.finalized_at is not None) == (found.state in FINAL)
    assert found.retry_limit is None or found.retry_count <= found.retry_limit
    assert (found.started_at is None) == (found.attempt == 0) == (found.assigned_at is None)


def shown(value: object) -> str:
    """A parameter as the name of a test may hold it."""
    return "object" if type(value) is object else ascii(value)[:40]
