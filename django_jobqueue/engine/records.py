"""Recording what an operator did, to which jobs, queue or schedule, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Max, Min

from ..conf import get_settings
from ..expressions import StatementTimestamp
from ..models import Job, Operation, OperationBatch
from ..redaction import redacted
from ..text import check_text, clean_text

AT_ONCE = 500  # jobs in a row
SHOWN = 1_000  # ids and refusals in the record itself


@dataclass(frozen=True, slots=True)
class Note:
    """The operator and the reason of a record; a call with neither is not recorded."""

    operator: str
    reason: str

    def __bool__(self) -> bool:
        return bool(self.operator or self.reason)


def noted(operator: object, reason: object = "") -> Note:
    """The operator and the reason, checked before any job moves: an invalid record must not undo the operation."""
    name = check_text(operator, option="operator", max_length=255)
    return Note(name, clean_text("" if reason is None else reason, max_chars=get_settings().MAX_ERROR_CHARS).strip())


def keep_record(
    verb: str,
    note: Note,
    using: str,
    *,
    queue: str | None = None,
    schedule: str = "",
    moved: Collection[UUID] = (),
    refused: Mapping[UUID, str] | None = None,
    count: int | None = None,
    confirmation: UUID | None = None,
    details: Mapping[str, Any] | None = None,
) -> Operation | None:
    """Record an operation that has ended, unless the note is empty; ``count`` replaces the number of ``moved``."""
    if not note:
        return None
    refused = refused or {}
    ids = list(moved)
    operation = Operation.objects.using(using).create(
        verb=verb,
        operator=note.operator,
        reason=note.reason,
        queue=queue or "",
        schedule=schedule,
        selection={"ids": [str(id) for id in ids[:SHOWN]]},
        moved=len(ids) if count is None else count,
        refused=len(refused),
        confirmation=confirmation,
        details={"refused": {str(id): why for id, why in list(refused.items())[:SHOWN]}, **(details or {})},
        finished_at=StatementTimestamp(),
    )
    keep_jobs(operation.pk, ids, using)
    return operation


def keep_jobs(operation: UUID, ids: list[UUID], using: str) -> None:
    """Record which jobs an operation has changed."""
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        seqs = Job.objects.using(using).filter(pk__in=some).aggregate(first_seq=Min("seq"), last_seq=Max("seq"))
        OperationBatch.objects.using(using).create(
            operation_id=operation, first_id=min(some), last_id=max(some), ids=some, **seqs
        )


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Which fields changed and from what to what, for the details of a record: without sensitive values."""
    fields = [name for name in after if before.get(name) != after[name]]
    was, now = (redacted({name: values.get(name) for name in fields}) for values in (before, after))
    return {"changed": {name: {"before": was[name], "after": now[name]} for name in fields}} if fields else {}
