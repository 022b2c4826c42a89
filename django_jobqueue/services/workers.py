"""Stopping workers, and returning their jobs to the queue."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q

from ..connection_names import name_process
from ..engine.databases import database
from ..engine.pools import remove_pools
from ..engine.queues import check_exists
from ..engine.records import keep_record, noted
from ..engine.recovery import jobs_of, return_uncharged
from ..expressions import StatementTimestamp
from ..models import Worker
from ..querysets import JobQuerySet
from ..text import check_text


def stop_worker(name: str, *, operator: str = "", reason: str = "", using: str | None = None) -> int:
    """Ask the worker of this name to stop gracefully, and return the number of processes that were asked.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``. Raises ``InvalidOption`` without a
    name.
    """
    check_text(name, option="name", max_length=255, required=True)
    using, note = database(using), noted(operator, reason)
    live = Worker.objects.using(using).filter(stopped_at=None, stopping_at=None)
    processes = live.filter(Q(name=name) | Q(name__startswith=f"{name}/"))
    with transaction.atomic(using=using):
        asked = processes.update(stopping_at=StatementTimestamp())
        if asked:
            keep_record("stop_worker", note, using, count=asked, details={"worker": name})
    return asked


def mark_worker_unresponsive(worker: str, *, using: str | None = None) -> dict[str, int]:
    """Return all running jobs of this worker to the queue without using up a retry; return the number per queue.

    A worker without jobs is not an error. Raises ``InvalidOption`` without a name.
    """
    check_text(worker, option="worker", max_length=255, required=True)
    using = database(using)
    return return_uncharged(
        using, lambda: jobs_of(using).running().assigned_to(worker), f"Worker {worker} does not respond."
    )


def reset_running(queue: str | None = None, *, using: str | None = None) -> dict[str, int]:
    """Return all running jobs to the queue without using up a retry, in one transaction; return the number per queue.

    Call this only while no worker runs: the handlers of these jobs are not stopped. Raises ``QueueNotFound``.
    """
    using = database(using)

    name = None if queue is None else check_exists(queue, using).name

    def running() -> JobQuerySet:
        return jobs_of(using).running() if name is None else jobs_of(using).running().in_queue(name)

    return return_uncharged(using, running, "Reset while it was running.")


def leave_pools() -> None:
    """Connect without Django's connection pools from now on, in a process that is only a worker.

    Call this before the process forks and before its first query, because processes must not share sockets of a pool.
    """
    remove_pools()
    name_process("runjobs")
