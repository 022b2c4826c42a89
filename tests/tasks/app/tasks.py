"""Tasks of a project: what tests send, and workers of every version of Django run."""

from __future__ import annotations

import asyncio
from typing import Any

import django

from django_jobqueue.tasks import JobTaskContext, task


class Refused(Exception):
    """An error of the project's own."""


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(priority=7)
def important() -> None:
    pass


@task
async def slowly(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


@task
def fails(message: str) -> None:
    raise Refused(message)


@task(takes_context=True)
def looks(context: JobTaskContext, *words: str, **more: Any) -> dict[str, Any]:
    result = context.task_result
    context.job_context.progress(0.5, "half")
    return {
        "attempt": context.attempt,
        "id": result.id,
        "status": result.status.value,
        "args": result.args,
        "kwargs": result.kwargs,
        "words": words,
        "more": more,
    }


@task(takes_context=True)
async def recovers(context: JobTaskContext) -> int:
    if context.attempt < 3:
        raise Refused(f"attempt {context.attempt}")
    return context.attempt


@task
def returns_an_object() -> object:
    return object()


@task
def returns_bytes() -> Any:
    return {"bytes": b"abc", "tuple": (1, 2)}


def no_task() -> None:
    pass


@task(takes_context=True)
def version(context: JobTaskContext, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Which Django runs it, and what it was given; the first attempt fails."""
    if context.attempt == 1:
        raise Refused("not yet")
    return {"django": django.get_version(), "args": args, "kwargs": kwargs, "errors": len(context.task_result.errors)}
