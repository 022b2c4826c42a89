"""The two sides beside each other: time that passes in the database, and its rows in the words of the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F
from django.test import TestCase

from django_jobqueue.models import Job, Queue, Worker

from . import reference
from .reference import ACTIVE, ANY, COMPLETED, FINAL, RUNNING

# So long that an example never takes half of it: then a row's age, rounded, is its age in the reference.
UNIT = timedelta(minutes=20)
NEVER = datetime.max.replace(tzinfo=UTC)
SECONDS = int(UNIT.total_seconds())

TIMES = (
    "created_at", "start_after", "started_at", "assigned_at", "expire_at", "lease_until", "heartbeat_at",
    "attempt_finished_at", "last_retry_at", "cancel_requested_at", "finalized_at", "delete_at", "first_start_after",
)  # fmt: skip
PLAIN = (
    "policy", "priority", "data", "state", "attempt", "retry_count", "crashes", "assignee", "incarnation",
    "error", "reason", "note", "source_id", "source_queue", "source_key",
)  # fmt: skip
COMPARED_TIMES = (
    "created_at", "start_after", "started_at", "assigned_at", "attempt_finished_at", "last_retry_at", "finalized_at",
)  # fmt: skip
OPTIONS = {"expire_in": "expire_in_seconds", "heartbeat": "heartbeat_seconds", "retention": "retention_seconds",
           "delete_after": "delete_after_seconds", "delete_failed_after": "delete_failed_after_seconds",
           "retry_delay": "retry_delay"}  # fmt: skip
READ = (
    "id", "queue_id", "singleton_key", "seq", "tags", "output", "retry_limit", *PLAIN, *TIMES, *OPTIONS.values(),
)  # fmt: skip

SNAPSHOT = f"SELECT {', '.join(READ)}, statement_timestamp() FROM jobqueue_job"


def pass_time(units: int) -> None:
    """Everything that was, was longer ago."""
    ago = units * UNIT
    Job.objects.update(**{name: F(name) - ago for name in TIMES})
    Worker.objects.update(heartbeat_at=F("heartbeat_at") - ago)


def snapshot() -> tuple[dict[UUID, dict[str, Any]], datetime]:
    """All rows, and the database's time."""
    with connection.cursor() as cursor:  # plain SQL, because the ORM takes longer than the verb that is looked at
        cursor.execute(SNAPSHOT)
        found = cursor.fetchall()
    rows = {row[0]: dict(zip(READ, row, strict=False)) for row in found}
    for row in rows.values():
        row |= {name: row[name] and json.loads(row[name]) for name in ("data", "output")}
    return rows, found[0][-1] if found else NEVER


def database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


def units_ago(moment: datetime | None, now: datetime) -> int | None:
    return None if moment is None else round((now - moment) / UNIT)


def differences(model: reference.Rules, job: reference.Job, row: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Where the row says otherwise than the reference: what was expected, and what is."""
    expected: dict[str, Any] = {name: getattr(job, name) for name in PLAIN}
    expected |= {"queue_id": job.queue, "singleton_key": job.key, "tags": set(job.tags)}
    expected |= {"retry_limit": job.options.retry_limit}
    expected |= {column: _seconds(getattr(job.options, name)) for name, column in OPTIONS.items()}
    if job.state == COMPLETED:
        expected["output"] = job.output
    found = {**row, "tags": set(row["tags"])}
    names = {*COMPARED_TIMES}
    names |= {"expire_at", "heartbeat_at"} if job.state in RUNNING else set()
    names |= {"lease_until"} if job.state == ACTIVE else set()
    for name in names:
        when = getattr(job, name)
        expected[name] = when if when is ANY or when is None else model.now - when
        found[name] = units_ago(row[name], now)
    return {n: (value, found[n]) for n, value in expected.items() if value is not ANY and value != found[n]}


def _seconds(units: int | None) -> int | None:
    return None if units is None else units * SECONDS


def lawful(row: dict[str, Any]) -> bool:
    """I4 and I6, of the row alone."""
    within = row["retry_limit"] is None or row["retry_count"] <= row["retry_limit"]
    return within and (row["finalized_at"] is not None) == (row["state"] in FINAL)


def options_of(queue: reference.Queue) -> dict[str, Any]:
    """For ``create_queue``. The backoff is capped at the delay itself, so that its jitter is nothing."""
    options = queue.options
    return {
        "policy": queue.policy,
        "delayed_head": queue.delayed_head,
        "on_exhausted": queue.on_exhausted,
        "dead_letter": queue.dead_letter,
        **job_options(vars(options)),
    }


def job_options(options: dict[str, Any]) -> dict[str, Any]:
    columns = {OPTIONS[name]: _seconds(value) for name, value in options.items() if name in OPTIONS}
    if "retry_limit" in options:
        columns["retry_limit"] = options["retry_limit"]
    if "retry_delay" in options:
        delay = columns["retry_delay"]
        columns |= {"retry_backoff": bool(delay), "retry_delay_max": delay or None}
    return columns


@contextmanager
def committed() -> Iterator[None]:
    """Run the callbacks of a commit, although inside a caller's transaction there is none."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        yield


class InOneTransaction:
    """An example inside a transaction that is rolled back: every verb joins its caller's."""

    def __init__(self) -> None:
        self.atomic = transaction.atomic()
        self.atomic.__enter__()

    def close(self) -> None:
        transaction.set_rollback(True)
        self.atomic.__exit__(None, None, None)


class InOwnTransactions:
    """An example whose verbs each own their transaction, as in a worker."""

    def close(self) -> None:
        for model in (Job, Worker, Queue):
            model.objects.all()._raw_delete("default")
