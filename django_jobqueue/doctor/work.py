"""Handlers, workers, dead letters, blocked keys, and jobs that run too long."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db.models import Count

from .. import handlers
from ..conf import get_settings
from ..expressions import StatementTimestamp
from ..models import Job, Worker
from ..services.inspect import health
from .findings import Finding, Level, Limits, ago, counted

MAINTAIN = "manage.py jobs maintain --once"
CAP = 1_000  # counts stop here


def waiting_without_handler(using: str, limits: Limits) -> Iterator[Finding]:
    try:
        handlers.autodiscover()
    except Exception as error:  # the project's modules may raise anything
        yield Finding(
            "handlers_broken",
            Level.ERROR,
            "The handlers of this project cannot be imported",
            f"{type(error).__name__}: {error}",
            "Correct the module that the error names; no worker can start with this code.",
            {"error": f"{type(error).__name__}: {error}"},
            using,
        )
        return
    for queue, name, number in health.waiting_handlers(sample=limits.sample, using=using):
        if handlers.find(queue, name) is None:
            yield _no_handler(using, queue, name, number, limits)


def _no_handler(using: str, queue: str, name: str, number: int, limits: Limits) -> Finding:
    by_hand = not name and not any(handler.queue == queue for handler in handlers.all_handlers())
    return Finding(
        "no_handler",
        Level.NOTICE if by_hand else Level.WARNING,
        f"{counted(number, 'waiting job', most=limits.sample)} of {queue!r} without a handler in this code",
        handlers.missing_text(queue, name)
        + (
            " Nothing is wrong if your own code fetches these jobs."
            if by_hand
            else " Workers leave them to a worker that has the handler; if none has, they fail after a while."
        ),
        f"Deploy the handler, or add aliases=[{name!r}] to the handler that replaced it; or "
        f"manage.py jobs cancel --queue {queue} --handler {name}"
        if name
        else f"Declare a handler with @job(queue={queue!r}); if there are several, mark one with default=True.",
        {"queue": queue, "handler": name, "waiting": number},
        using,
    )


# ----------------------------------------------------------------------------------------------------------- workers


def silent_workers(using: str, limits: Limits) -> Iterator[Finding]:
    """Workers that send no heartbeats and did not stop, and the jobs that they hold."""
    lost = timedelta(seconds=get_settings().WORKER_LOST_SECONDS)
    silent = Worker.objects.using(using).annotate(now=StatementTimestamp()).filter(stopped_at=None)
    silent = silent.filter(heartbeat_at__lte=StatementTimestamp() - lost).order_by("heartbeat_at")
    listed: list[Any] = list(silent[: limits.listed])
    held = dict(
        Job.objects.using(using)
        .running()
        .filter(incarnation__in=[worker.pk for worker in listed])
        .order_by()
        .values_list("incarnation")
        .annotate(number=Count("*"))
    )
    for worker in listed:
        jobs, age = held.get(worker.pk, 0), (worker.now - worker.heartbeat_at).total_seconds()
        yield Finding(
            "worker_silent",
            Level.ERROR if jobs else Level.WARNING,
            f"The worker {worker.name!r} has been silent for {ago(age)}",
            f"On {worker.host or 'an unknown host'}, pid {worker.pid or 'unknown'}; it holds {counted(jobs, 'job')}. "
            "It was killed or cannot reach the database, and no live worker has recovered its jobs.",
            MAINTAIN,
            {"worker": worker.name, "id": str(worker.pk), "host": worker.host, "pid": worker.pid, "seconds": age,
             "jobs": jobs},
            using,
        )  # fmt: skip


def waiting_without_worker(using: str, limits: Limits) -> Iterator[Finding]:
    """Queues that no worker takes, and dead letters, which are not for workers."""
    lost = timedelta(seconds=get_settings().WORKER_LOST_SECONDS)
    live = Worker.objects.using(using).filter(stopped_at=None, heartbeat_at__gt=StatementTimestamp() - lost)
    taken = [set(queues) for queues in live.values_list("queues", flat=True)]
    for queue, is_paused, age in health.next_jobs(using=using):
        if is_paused:
            yield _paused(using, queue, age)
        elif not any(not queues or queue in queues for queues in taken):
            yield Finding(
                "no_worker",
                Level.ERROR,
                f"No worker takes jobs of {queue!r}",
                f"Its next job was sent {ago(age)} ago, and no live worker takes jobs of this queue.",
                f"manage.py runjobs --queue {queue}",
                {"queue": queue, "seconds": age},
                using,
            )
    yield from _dead_letters(using)


def _dead_letters(using: str) -> Iterator[Finding]:
    """Copies of jobs that failed for good. A worker would run them again, so running one is never the advice."""
    for queue, number, age in health.dead_letters(most=CAP, using=using):
        yield Finding(
            "dead_letters",
            Level.NOTICE,
            f"{counted(number, 'dead letter', most=CAP)} in {queue!r}, the oldest {ago(age)} old",
            "They are copies of jobs that failed for good, and wait for an operator. Look at them with "
            f"manage.py jobs list --queue {queue}. Once the cause is repaired, redrive them: each original is retried "
            "in its place; if it is gone, its job is sent again.",
            f"manage.py jobs redrive {queue}",
            {"queue": queue, "jobs": number, "seconds": age},
            using,
        )


def _paused(using: str, queue: str, age: float) -> Finding:
    return Finding(
        "queue_paused",
        Level.NOTICE,
        f"{queue!r} is paused while jobs wait",
        f"Its next job was sent {ago(age)} ago.",
        f"manage.py jobs resume {queue}",
        {"queue": queue, "seconds": age},
        using,
    )


# ----------------------------------------------------------------------------------------------- blocked and overdue


def blocked_keys(using: str, limits: Limits) -> Iterator[Finding]:
    for queue, number, age in health.blocked_keys(most=CAP, using=using):
        yield Finding(
            "blocked_keys",
            Level.WARNING,
            f"{counted(number, 'blocked key', most=CAP)} in {queue!r}, the longest for {ago(age)}",
            "A job of each key failed for good, and later jobs of the key wait until an operator retries or skips it.",
            f"manage.py jobs blocked {queue}",
            {"queue": queue, "keys": number, "seconds": age},
            using,
        )


def overdue_jobs(using: str, limits: Limits) -> Iterator[Finding]:
    for queue, number, age in health.overdue_jobs(seconds=limits.overdue_seconds, most=CAP, using=using):
        yield Finding(
            "overdue_jobs",
            Level.ERROR,
            f"{counted(number, 'job', most=CAP)} of {queue!r} past the deadline by up to {ago(age)}",
            "They are not expired: no worker that runs maintenance is alive.",
            MAINTAIN,
            {"queue": queue, "jobs": number, "seconds": age},
            using,
        )


LOOKS = (waiting_without_handler, silent_workers, waiting_without_worker, blocked_keys, overdue_jobs)
