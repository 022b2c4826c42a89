"""Handlers whose runs are looked at from outside."""

from __future__ import annotations

import os
import signal

from django_jobqueue import JobContext, job
from django_jobqueue.carriers import get_request_id

PASSWORD = "hunter2"


@job(queue="observed", takes_context=True, retry_limit=2)
def second_time(context: JobContext) -> str | None:
    if context.attempt == 1:
        raise ConnectionError(f"not yet: password={PASSWORD}")
    return get_request_id()


@job(queue="observed-lanes", retry_limit=0)
def never() -> None:
    raise ValueError("the card was refused")


@job(queue="observed", retry_limit=0)
async def never_async() -> None:
    raise ValueError("the card was refused later")


@job(queue="observed", takes_context=True)
def crash_once(context: JobContext) -> None:
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
