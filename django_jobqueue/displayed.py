"""Data, output and errors of a job as they are displayed: without sensitive values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import handlers
from .models import Job
from .redaction import editable, redacted, redacted_text, restored


def shown_data(job: Job) -> Any:
    return redacted(job.data, arguments=_arguments(job))


def shown_output(job: Job) -> Any:
    return redacted(job.output)


def shown_summary(job: Job) -> str:
    """The error of a job in one line."""
    return redacted_text(job.error_summary or "")


def shown_attempts(job: Job) -> list[dict[str, Any]]:
    """The attempts that did not succeed, with their error texts."""
    texts = ("error", "error_summary")
    return [
        {**attempt, **{name: redacted_text(str(attempt.get(name) or "")) for name in texts}} for attempt in job.attempts
    ]


@dataclass(frozen=True)
class ShownEdit:
    """The data of a job before and after an operator changed it."""

    id: str
    before: Any
    after: Any


def shown_edits(edits: Mapping[str, Mapping[str, Any]]) -> list[ShownEdit]:
    """Recorded changes of data, by the id of the job."""
    jobs = {str(job.pk): job for job in Job.objects.filter(pk__in=edits).only("queue_id", "name")}
    names = {id: _arguments(jobs[id]) if id in jobs else () for id in edits}
    return [
        ShownEdit(
            id, redacted(edit.get("before"), arguments=names[id]), redacted(edit.get("after"), arguments=names[id])
        )
        for id, edit in edits.items()
    ]


def data_to_edit(job: Job) -> Any:
    return editable(job.data, salt=str(job.pk), arguments=_arguments(job))


def edited_data(edited: Any, job: Job) -> Any:
    """The data of a job after an operator has edited it. Raises ``HiddenValueMoved``."""
    return restored(edited, job.data, salt=str(job.pk), arguments=_arguments(job))


def _arguments(job: Job) -> Sequence[str]:
    """The names of the positional arguments of a task. A web process may not have imported its handlers yet."""
    find = handlers.discovered() if job.name and handlers.find(job.queue_id, job.name) is None else handlers.find
    handler = find(job.queue_id, job.name) if job.name and find else None
    return () if handler is None else handler.positional
