"""Waiting for the result of a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from ..engine.databases import database
from ..identifiers import as_uuid
from ..models import Job
from ..waiting import wait, wait_async


def wait_for(job: Job | UUID | str, *, timeout: float | timedelta | None = None, using: str | None = None) -> Any:
    """Wait until the job has ended, and return its output.

    A job that waits for its next attempt has not ended. Raises ``JobFailed`` if it failed for good or expired,
    ``JobCancelled`` if it was cancelled, stopped or skipped, ``JobNotFound`` if it does not exist or is deleted
    meanwhile, ``WaitTimeout`` after ``timeout`` seconds, and ``CannotWait`` inside a transaction that has sent or
    changed the job, or that is stricter than ``READ COMMITTED``. Without ``timeout`` it waits without limit.
    """
    return wait(*_found(job, using), timeout)


async def await_for(
    job: Job | UUID | str, *, timeout: float | timedelta | None = None, using: str | None = None
) -> Any:
    """Like :func:`wait_for`, for async code: the event loop runs on while it waits."""
    return await wait_async(*_found(job, using), timeout)


def _found(job: Job | UUID | str, using: str | None) -> tuple[UUID, str]:
    if isinstance(job, Job):
        return job.pk, database(using or job._state.db)
    return as_uuid(job), database(using)
