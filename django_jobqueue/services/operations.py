"""What an operator does to many jobs: a bit at a time, with its progress on record, and able to go on later.

Each bit and the note of how far it got are one transaction, so that an operation which was interrupted, by a closed
browser or a crash, goes on exactly where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db.models import F

from ..conf import get_settings
from ..encoding import check_text, clean_text
from ..engine import paging
from ..engine.databases import database
from ..engine.snapshots import CHANGED, Seen, check_snapshot
from ..engine.transactions import in_transaction, rows
from ..exceptions import InvalidOption
from ..expressions import StatementTimestamp
from ..models import Operation
from ..querysets import JobQuerySet
from ..states import FINAL, OCCUPIED, RETRIABLE, SKIPPABLE, JobState
from .operator import AT_ONCE, cancel, delete_each, retry, skip

REFUSALS_KEPT = 1_000

Result = tuple[int, dict[UUID, str]]  # how many moved, and who was refused why


@dataclass(frozen=True, slots=True)
class Verb:
    """What can be done to many jobs: which it takes, and how it is done to some of them."""

    takes: frozenset[JobState]
    run: Callable[[list[UUID], Operation, str], Result]
    needs_reason: bool = False


def _retry(ids: list[UUID], operation: Operation, using: str) -> Result:
    outcome = retry(ids, **_noted(operation), using=using)
    return len(outcome.moved), outcome.refused


def _skip(ids: list[UUID], operation: Operation, using: str) -> Result:
    outcome = skip(ids, **_noted(operation), using=using)
    return len(outcome.moved), outcome.refused


def _noted(operation: Operation) -> dict[str, Any]:
    return {
        "operator": operation.operator,
        "reason": operation.reason,
        "record": False,
        "snapshot": operation.snapshot or None,
    }


def _cancel(ids: list[UUID], operation: Operation, using: str) -> Result:
    result = cancel(ids, snapshot=operation.snapshot or None, using=using)
    return len(result.cancelled), {id: _not_cancelled(result.previous.get(id)) for id in result.unknown}


def _not_cancelled(state: JobState | None) -> str:
    """A job that waits or runs is always cancelled, unless another of its id was shown."""
    if state is None:
        return "there is no such job"
    return CHANGED if state in OCCUPIED else f"it is {state}"


def _delete(ids: list[UUID], operation: Operation, using: str) -> Result:
    outcome = delete_each(ids, snapshot=operation.snapshot or None, using=using)
    return len(outcome.moved), outcome.refused


VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "retry": Verb(RETRIABLE, _retry),
        "skip": Verb(SKIPPABLE, _skip, needs_reason=True),
        "cancel": Verb(OCCUPIED, _cancel),
        "delete": Verb(FINAL, _delete),
    }
)


def begin_operation(
    verb: str,
    *,
    ids: Iterable[UUID] | None = None,
    selection: Mapping[str, Any] | None = None,
    operator: str,
    reason: str = "",
    snapshot: str | None = None,
    using: str | None = None,
) -> Operation:
    """Record what is to be done to these jobs, or to all that a filter finds; :func:`advance_operation` does it.

    Only jobs that were in their state at the ``snapshot`` are meant, which :func:`current_snapshot` returned when they
    were shown; without it, at the snapshot of this call. Named jobs that changed since are refused. Of a filter's they
    are counted at the end, as ``details["came_later"]``. Raises ``InvalidOption`` for a verb that does not exist, for a
    snapshot that is none of this database, and without a reason where one is needed.
    """
    using = database(using)
    if verb not in VERBS:
        raise InvalidOption("verb", f"expected one of {', '.join(VERBS)}, got {str(verb)[:40]!a}")
    reason = clean_text(reason, max_chars=get_settings().MAX_ERROR_CHARS).strip()
    if VERBS[verb].needs_reason and not reason:
        raise InvalidOption("reason", "expected a text that says why", hint="It is kept with the job.")
    shown = current_snapshot(using=using) if snapshot is None else check_snapshot(snapshot, using)
    chosen: dict[str, Any] = dict(selection or {})
    if ids is not None:
        chosen["ids"] = [str(id) for id in dict.fromkeys(ids)]
        cursor = {"place": 0}
    else:
        chosen |= {"from": paging.first_number(using), "until": paging.last_number(using)}
        cursor = {"place": chosen["from"]}
    return Operation.objects.using(using).create(
        verb=verb,
        operator=check_text(operator, option="operator", max_length=255),
        reason=reason,
        state=Operation.State.RUNNING,
        selection=chosen,
        snapshot=shown,
        cursor=cursor,
    )


def advance_operation(
    operation: Operation,
    jobs: JobQuerySet | None = None,
    *,
    seconds: float = 1.0,
    using: str | None = None,
) -> Operation:
    """Go on for about that long, and return how far it got; at once when it has ended or was stopped.

    ``jobs`` are those its filter finds now; not needed for one that names its jobs. Two that advance the same
    operation take turns.
    """
    using = database(using)
    deadline = time.monotonic() + seconds
    while True:
        reached = in_transaction(using, partial(_advance, operation.pk, jobs, using))
        if reached.state != Operation.State.RUNNING or time.monotonic() >= deadline:
            return reached


def stop_operation(operation: Operation, *, using: str | None = None) -> bool:
    """Let it rest where it is; whether it was under way."""
    return _switch(operation, Operation.State.RUNNING, Operation.State.STOPPED, database(using))


def resume_operation(operation: Operation, *, using: str | None = None) -> bool:
    """Let an operation that was stopped go on; whether it was."""
    return _switch(operation, Operation.State.STOPPED, Operation.State.RUNNING, database(using))


def _switch(operation: Operation, was: str, state: str, using: str) -> bool:
    finished = None if state == Operation.State.RUNNING else StatementTimestamp()
    moved = Operation.objects.using(using).filter(pk=operation.pk, state=was)
    return bool(moved.update(state=state, finished_at=finished))


def _advance(id: UUID, jobs: JobQuerySet | None, using: str) -> Operation:
    operation = Operation.objects.using(using).select_for_update().get(pk=id)
    if operation.state != Operation.State.RUNNING:
        return operation
    ids, place, more = _next(operation, jobs)
    moved, refused = VERBS[operation.verb].run(ids, operation, using) if ids else (0, {})
    kept = operation.details.get("refused", {})
    kept |= {str(one): why for one, why in list(refused.items())[: max(0, REFUSALS_KEPT - len(kept))]}
    later = {} if more else _came_later(operation, jobs)
    Operation.objects.using(using).filter(pk=id).update(
        cursor={"place": place},
        moved=F("moved") + moved,
        refused=F("refused") + len(refused),
        details={**operation.details, "refused": kept, **later},
        **({} if more else {"state": Operation.State.DONE, "finished_at": StatementTimestamp()}),
    )
    return Operation.objects.using(using).get(pk=id)


def _next(operation: Operation, jobs: JobQuerySet | None) -> tuple[list[UUID], int, bool]:
    """The jobs whose turn it is, where the next bit begins, and whether there is one."""
    place = int((operation.cursor or {}).get("place", 0))
    named = operation.selection.get("ids")
    if named is not None:
        after = place + AT_ONCE
        return [UUID(id) for id in named[place:after]], after, after < len(named)
    if jobs is None:
        raise InvalidOption("jobs", "this operation is over what a filter finds, so it needs a queryset")
    taken = jobs.in_state(*VERBS[operation.verb].takes).filter(seq__lte=operation.selection["until"])
    meant = Seen(operation.verb, operation.snapshot).among(taken)
    piece = paging.look(meant.only("seq"), AT_ONCE, after=place)
    more = piece.more and piece.place < operation.selection["until"]
    return [job.pk for job in piece.jobs], piece.place, more


def _came_later(operation: Operation, jobs: JobQuerySet | None) -> dict[str, int]:
    """How many jobs the filter finds that became what the verb takes after they were shown; they were not touched."""
    if jobs is None or not operation.snapshot:
        return {}
    later = Seen(operation.verb, operation.snapshot).later(jobs.in_state(*VERBS[operation.verb].takes))
    counted = paging.count(later)
    among = {} if counted.among is None else {"came_later_among": counted.among}
    return {"came_later": counted.number, **among}


def current_snapshot(*, using: str | None = None) -> str:
    """What is committed now, as text: ask for it before you show jobs, and give it to :func:`begin_operation`."""
    return str(rows(database(using), "SELECT pg_current_snapshot()::text")[0][0])
