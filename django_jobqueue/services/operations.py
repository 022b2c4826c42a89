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
from ..exceptions import InvalidOption, InvalidTransition, JobNotFound
from ..expressions import StatementTimestamp
from ..models import Job, Operation
from ..querysets import JobQuerySet
from ..states import FINAL, OCCUPIED, RETRIABLE, SKIPPABLE, JobState
from . import windows
from .operate import AT_ONCE, cancel, delete, retry, skip
from .transactions import database, in_transaction

REFUSALS_KEPT = 1_000
TRIES = 5

Result = tuple[int, dict[UUID, str]]  # how many moved, and who was refused why


@dataclass(frozen=True, slots=True)
class Verb:
    """What can be done to many jobs: which it takes, and how it is done to some of them."""

    takes: frozenset[JobState]
    run: Callable[[list[UUID], Operation, str], Result]
    needs_reason: bool = False


def _retry(ids: list[UUID], operation: Operation, using: str) -> Result:
    outcome = retry(ids, operator=operation.operator, reason=operation.reason, record=False, using=using)
    return len(outcome.moved), outcome.refused


def _skip(ids: list[UUID], operation: Operation, using: str) -> Result:
    outcome = skip(ids, operator=operation.operator, reason=operation.reason, record=False, using=using)
    return len(outcome.moved), outcome.refused


def _cancel(ids: list[UUID], operation: Operation, using: str) -> Result:
    result = cancel(ids, using=using)
    return len(result.cancelled), {id: _refusal(result.previous.get(id)) for id in result.unknown}


def _delete(ids: list[UUID], operation: Operation, using: str) -> Result:
    """All that can be deleted; who is given a new attempt at this moment is refused the next time round."""
    for tries_left in reversed(range(TRIES)):
        states = dict(Job.objects.using(using).filter(pk__in=ids).values_list("pk", "state"))
        final = [id for id in ids if states.get(id) in FINAL]
        try:
            deleted = delete(final, using=using) if final else 0
        except (InvalidTransition, JobNotFound):
            if not tries_left:
                raise
            continue
        others = [id for id in ids if states.get(id) not in FINAL]
        return deleted, {id: _refusal(states.get(id)) for id in others}
    raise AssertionError("unreachable")


def _refusal(state: str | None) -> str:
    return "there is no such job" if state is None else f"it is {state}"


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
    using: str | None = None,
) -> Operation:
    """Record what is to be done to these jobs, or to all that a filter finds; :func:`advance_operation` does it.

    A filter means the jobs sent until now, whatever comes later. Raises ``InvalidOption`` for a verb that does not
    exist, and without a reason where one is needed.
    """
    using = database(using)
    if verb not in VERBS:
        raise InvalidOption("verb", f"expected one of {', '.join(VERBS)}, got {str(verb)[:40]!a}")
    reason = clean_text(reason, max_chars=get_settings().MAX_ERROR_CHARS).strip()
    if VERBS[verb].needs_reason and not reason:
        raise InvalidOption("reason", "expected a text that says why", hint="It is kept with the job.")
    chosen: dict[str, Any] = dict(selection or {})
    if ids is not None:
        chosen["ids"] = [str(id) for id in dict.fromkeys(ids)]
        cursor = {"place": 0}
    else:
        chosen |= {"from": windows.first_number(using), "until": windows.last_number(using)}
        cursor = {"place": chosen["from"]}
    return Operation.objects.using(using).create(
        verb=verb,
        operator=check_text(operator, option="operator", max_length=255),
        reason=reason,
        state=Operation.State.RUNNING,
        selection=chosen,
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
    Operation.objects.using(using).filter(pk=id).update(
        cursor={"place": place},
        moved=F("moved") + moved,
        refused=F("refused") + len(refused),
        details={**operation.details, "refused": kept},
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
    meant = jobs.in_state(*VERBS[operation.verb].takes).filter(seq__lte=operation.selection["until"])
    piece = windows.look(meant.only("seq"), AT_ONCE, after=place)
    more = piece.more and piece.place < operation.selection["until"]
    return [job.pk for job in piece.jobs], piece.place, more
