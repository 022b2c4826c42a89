"""Each handler writes into the history when it begins and when it ends, and, if it is slow, that it lives."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Any

from django.db import connection

from django_jobqueue.handlers import JobContext, RetryLater, job
from django_jobqueue.signals import job_finished

from ..history import write
from ..tracked import follow, note_recorded

Context = JobContext


def _write(event: str, context: Context, n: int) -> None:
    write(event, str(context.job.pk), context.job.singleton_key or str(context.job.pk), n, context.attempt)


def _work(context: Context, n: int, seconds: float) -> None:
    _write("began", context, n)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
        if seconds > 0.1:
            _write("lives", context, n)


@job(queue="orders", name="step", takes_context=True)
def step(context: Context, n: int, seconds: float = 0.0, once: float = 0.0) -> None:
    """``once``: for how many seconds besides the first attempt works."""
    _work(context, n, seconds + (once if context.attempt == 1 else 0.0))
    _write("ended", context, n)


@job(queue="work", name="plain", takes_context=True)
def plain(context: Context, n: int, seconds: float = 0.0) -> None:
    _work(context, n, seconds)
    _write("ended", context, n)


@job(queue="ledger", name="book", takes_context=True, atomic=True)
def book(context: Context, n: int, seconds: float = 0.0) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES (%s, %s)", [context.job.pk, n])
    _work(context, n, seconds)
    _write("ended", context, n)


@job(queue="work", name="later", takes_context=True)
def later(context: Context, n: int, at: str = "") -> None:
    _write("began", context, n)
    if context.attempt == 1:
        raise RetryLater(at=datetime.fromisoformat(at)) if at else RuntimeError("once more")
    _write("ended", context, n)


@job(queue="talk", name="reply", takes_context=True)
async def reply(context: Context, n: int) -> Any:
    _write("began", context, n)
    _write("ended", context, n)


# Of these the database can name the run that counted: see tracked.py. They do not look at ``context.cancelled``, like
# most handlers.


@job(queue="orders", name="tracked", takes_context=True)
def tracked(context: Context, n: int, seconds: float) -> dict[str, str]:
    return follow(context, n, seconds)


@job(queue="ledger", name="tracked_atomic", takes_context=True, atomic=True)
def tracked_atomic(context: Context, n: int, seconds: float) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES (%s, %s)", [context.job.pk, n])
    return follow(context, n, seconds)


if os.environ.get("FAULTS_NOTE_RECORDED"):
    job_finished.connect(note_recorded, dispatch_uid="faults_note_recorded")
