"""Handlers that write down what they do. Each returns a token of its run, so that the table says which run counted."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from django.db import connection

from django_jobqueue.handlers import JobContext, job

from ..history import alone, write
from ..variants import EXPIRES_AFTER, VARIANTS

Context = JobContext


@contextmanager
def noted(context: Context, fails: int) -> Iterator[str]:
    """Around the work: its begin, its end, and the kernel's lock of its key; the first attempts fail if told to."""
    found, token = context.job, uuid4().hex
    key = found.group_key if VARIANTS[found.queue_id].grouped else found.singleton_key
    facts = {"job": str(found.pk), "queue": found.queue_id, "key": key}
    with alone(found.queue_id, key or str(found.pk), token):
        write("began", token=token, **facts, attempt=found.attempt, number=found.held_number)
        how = "raised"
        try:
            yield token
            if context.attempt <= fails:
                raise RuntimeError(f"attempt {context.attempt} of {fails} that fail")
            how = "returned"
        finally:
            write("ended", token=token, how=how)


@job(queue="free", name="work", takes_context=True)
def work(context: Context, seconds: float = 0.0, fails: int = 0) -> dict[str, str]:
    with noted(context, fails) as token:
        time.sleep(seconds)
    return {"token": token}


@job(queue="atomic", name="effect", takes_context=True, atomic=True)
def effect(context: Context, seconds: float = 0.0, fails: int = 0) -> dict[str, str]:
    with noted(context, fails) as token:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO effect VALUES (%s)", [context.job.pk])
        time.sleep(seconds)
    return {"token": token}


@job(queue="async", name="wait", takes_context=True)
async def wait(context: Context, seconds: float = 0.0, fails: int = 0) -> dict[str, str]:
    with noted(context, fails) as token:
        await asyncio.sleep(seconds)
    return {"token": token}


@job(queue="expiring", name="stubborn", takes_context=True)
def stubborn(context: Context, seconds: float = 0.0, fails: int = 0) -> dict[str, str]:
    """One attempt in some outlives its time, and holds the interpreter so that nothing can interrupt it."""
    with noted(context, 0) as token:
        time.sleep(seconds)
        if context.attempt <= fails:
            ctypes.PyDLL(None).usleep(int((EXPIRES_AFTER + 1) * 1_000_000))
    return {"token": token}
