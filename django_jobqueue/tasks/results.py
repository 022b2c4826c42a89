"""A job as the ``TaskResult`` of Django's tasks API."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from django.utils import timezone

from ..models import Job
from ..states import ELIGIBLE, RUNNING, UNHANDLED, FailureReason, JobState
from ..text import HISTORY_CHARS, shortened
from .api import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus

STATUSES: Mapping[Any, TaskResultStatus] = MappingProxyType(
    dict.fromkeys(JobState, TaskResultStatus.FAILED)
    | dict.fromkeys(ELIGIBLE, TaskResultStatus.READY)
    | dict.fromkeys(RUNNING, TaskResultStatus.RUNNING)
    | {JobState.COMPLETED: TaskResultStatus.SUCCESSFUL}
)


def data_of(args: Any, kwargs: Any) -> dict[str, Any]:
    """The data of a job that stands for a call; the same under every version of Django."""
    return {"args": args, "kwargs": kwargs}


def arguments(data: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the call. A verb or a schedule may have sent keyword arguments or a single value as data."""
    if isinstance(data, dict):
        if data.keys() == {"args", "kwargs"} and isinstance(data["args"], list) and isinstance(data["kwargs"], dict):
            return data["args"], data["kwargs"]
        return [], data
    return ([], {}) if data is None else ([data], {})


def result_of(job: Job, task: Task[..., Any], alias: str) -> TaskResult[Any]:
    """The result of a job as it was read from the database."""
    result = _result(job, _as_sent(task, job, alias, run_after=job.first_start_after), alias)
    object.__setattr__(result, "status", STATUSES[job.state])
    object.__setattr__(result, "finished_at", job.finalized_at)
    if job.state == JobState.COMPLETED:
        object.__setattr__(result, "_return_value", job.output)
    return result


def running_result(job: Job, task: Task[..., Any], alias: str) -> TaskResult[Any]:
    """The result of a job that a worker holds. Only for a later attempt the database is read."""
    return _result(job, _as_sent(task, job, alias), alias)


def successful_result(job: Job, task: Task[..., Any], alias: str, value: Any) -> TaskResult[Any]:
    """The result of a job that a worker has completed. Its time is approximate: only the database has the exact one."""
    result = running_result(job, task, alias)
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "_return_value", value)
    return result


def _result(job: Job, task: Task[..., Any], alias: str) -> TaskResult[Any]:
    args, kwargs = arguments(job.data)
    attempts = job.attempts if job.attempt > 1 or job.state not in RUNNING else []
    return TaskResult(
        task=task,
        id=str(job.pk),
        status=TaskResultStatus.RUNNING,
        enqueued_at=job.created_at,
        started_at=job.started_at,
        finished_at=None,
        last_attempted_at=job.assigned_at,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=_errors(job, attempts),
        worker_ids=_workers(job, attempts),
    )


def _as_sent(task: Task[..., Any], job: Job, alias: str, **more: Any) -> Task[..., Any]:
    given = {"priority": job.priority, "queue_name": job.queue_id, "backend": alias, **more}
    changes = {name: value for name, value in given.items() if getattr(task, name) != value}
    try:
        return replace(task, **changes) if changes else task
    except InvalidTask:  # a verb sent the job, or settings have changed: show the task as declared
        return task


def _workers(job: Job, attempts: list[dict[str, Any]]) -> list[str]:
    """The workers of the attempts, as far as the history has them."""
    workers = [str(entry["worker"]) for entry in attempts]
    told = {entry["attempt"] for entry in attempts}
    return [*workers, job.assignee] if job.attempt and job.attempt not in told else workers


def _errors(job: Job, attempts: list[dict[str, Any]]) -> list[TaskError]:
    errors = []
    for entry in attempts:
        text, outcome = entry.get("error") or "", entry["outcome"]
        if text and outcome not in (FailureReason.RETURNED, UNHANDLED):
            if entry is attempts[-1] and text == shortened(job.error, HISTORY_CHARS):
                text = job.error  # the history has a long error without its middle
            # Tracebacks of Django's own backends end with a newline; stored errors do not.
            errors.append(TaskError(exception_class_path=exception_path(text, outcome), traceback=f"{text.rstrip()}\n"))
    return errors


EXPIRED = "django_jobqueue.handlers.JobExpired"
NO_EXCEPTION = "django_jobqueue.exceptions.JobQueueError"
_HEAD = re.compile(r"Traceback \(most recent call last\):$|  File \"")
_EXCEPTION = re.compile(r"(?P<path>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::|$)")


def exception_path(error: str, outcome: str = FailureReason.ERROR) -> str:
    """The class that a formatted exception names; ``JobQueueError`` if the text is not an exception."""
    if outcome == FailureReason.EXPIRED:
        return EXPIRED
    lines = _outermost(error.splitlines())
    last = max((place for place, line in enumerate(lines) if _HEAD.match(line)), default=-1)
    for line in lines[last + 1 :]:
        found = None if line.startswith("   ") else _EXCEPTION.match(line)
        if found is not None:
            return _dotted(found["path"])
        if last < 0:
            break
    return NO_EXCEPTION


def _outermost(lines: list[str]) -> list[str]:
    """The lines of the outermost exception, if the error is an exception group."""
    if not any(line.startswith("  + Exception Group Traceback") for line in lines):
        return lines
    return [line.removeprefix("  | ") for line in lines if line.startswith("  | ")]


def _dotted(path: str) -> str:
    if "." in path:
        return path
    known = getattr(builtins, path, None)
    return f"builtins.{path}" if isinstance(known, type) and issubclass(known, BaseException) else NO_EXCEPTION
