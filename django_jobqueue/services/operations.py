"""What an operator does to many jobs: a bit at a time, with its progress on record, and able to go on later.

Each bit and the note of how far it got are one transaction, so that an operation which was interrupted, by a closed
browser or a crash, goes on exactly where it was. Its selection is stored with it, so that any process can continue it:
the admin's page, the command that began it, and the housekeeping process of every worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet
from django.utils.dateparse import parse_datetime

from ..conf import get_settings
from ..engine import paging, sql
from ..engine.databases import database, rows
from ..engine.snapshots import CHANGED, Seen, check_snapshot
from ..engine.transactions import in_transaction
from ..exceptions import InvalidOption
from ..expressions import StatementTimestamp
from ..log_texts import error_line
from ..models import Job, Operation
from ..querysets import JobQuerySet
from ..selection import Selection
from ..states import FINAL, OCCUPIED, RETRIABLE, SKIPPABLE, JobState
from ..text import check_text, clean_text
from .operator import AT_ONCE, cancel, delete_each, retry, skip

logger = logging.getLogger("django_jobqueue.operations")

REFUSALS_KEPT = 1_000
# An operation that no process advanced for so long is continued by a housekeeping process. The page of the admin and
# the command line advance theirs more often, so that they are not interfered with.
IDLE_SECONDS = 10.0

Result = tuple[list[UUID], dict[UUID, str]]  # which jobs moved, and which were refused why


@dataclass(frozen=True, slots=True)
class Verb:
    """What can be done to many jobs: which it takes, and how it is done to some of them."""

    takes: frozenset[JobState]
    run: Callable[[list[UUID], Operation, str], Result]
    needs_reason: bool = False


def _retry(ids: list[UUID], operation: Operation, using: str) -> Result:
    outcome = retry(ids, **_noted(operation), using=using)
    return outcome.moved, outcome.refused


def _skip(ids: list[UUID], operation: Operation, using: str) -> Result:
    outcome = skip(ids, **_noted(operation), using=using)
    return outcome.moved, outcome.refused


def _noted(operation: Operation) -> dict[str, Any]:
    return {
        "operator": operation.operator,
        "reason": operation.reason,
        "record": False,
        "snapshot": operation.snapshot or None,
    }


def _cancel(ids: list[UUID], operation: Operation, using: str) -> Result:
    force = bool(operation.details.get("force"))
    result = cancel(ids, force=force, snapshot=operation.snapshot or None, using=using)
    return result.cancelled, {id: _not_cancelled(result.previous.get(id)) for id in result.unknown}


def _not_cancelled(state: JobState | None) -> str:
    """A job that waits or runs is always cancelled, unless another of its id was shown."""
    if state is None:
        return "there is no such job"
    return CHANGED if state in OCCUPIED else f"it is {state}"


def _delete(ids: list[UUID], operation: Operation, using: str) -> Result:
    outcome = delete_each(ids, snapshot=operation.snapshot or None, using=using)
    return outcome.moved, outcome.refused


VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "retry": Verb(RETRIABLE, _retry),
        "skip": Verb(SKIPPABLE, _skip, needs_reason=True),
        "cancel": Verb(OCCUPIED, _cancel),
        "delete": Verb(FINAL, _delete),
    }
)


@dataclass(frozen=True, slots=True)
class Bit:
    """One committed step of an operation: the operation after it, and what the step did."""

    operation: Operation
    moved: list[UUID] = field(default_factory=list)
    refused: dict[UUID, str] = field(default_factory=dict)


def begin_operation(
    verb: str,
    *,
    ids: Iterable[UUID] | None = None,
    selection: Selection | Mapping[str, Any] | None = None,
    operator: str,
    reason: str = "",
    snapshot: str | None = None,
    force: bool = False,
    using: str | None = None,
) -> Operation:
    """Record what is to be done to these jobs, or to all that a selection means; :func:`advance_operation` does it.

    The ``selection`` is a ``Selection`` or its JSON. Only jobs that were in their state at the ``snapshot`` are meant,
    which :func:`current_snapshot` returned when they were shown; without it, at the snapshot of this call. Named jobs
    that changed since are refused. Of other selections they are counted at the end, as ``details["came_later"]``.
    ``force`` is that of :func:`cancel`. Raises ``InvalidOption`` for a verb that does not exist, for a selection or a
    snapshot that is none, and without a reason where one is needed.
    """
    using = database(using)
    if verb not in VERBS:
        raise InvalidOption("verb", f"expected one of {', '.join(VERBS)}, got {str(verb)[:40]!a}")
    if force and verb != "cancel":
        raise InvalidOption("force", f"{verb} cannot be forced")
    reason = clean_text(reason, max_chars=get_settings().MAX_ERROR_CHARS).strip()
    if VERBS[verb].needs_reason and not reason:
        raise InvalidOption("reason", "expected a text that says why", hint="It is kept with the job.")
    chosen = _chosen(ids, selection)
    snapshot = chosen.snapshot if snapshot is None else snapshot
    shown = current_snapshot(using=using) if snapshot is None else check_snapshot(snapshot, using)
    chosen = _bounded(replace(chosen, snapshot=None), using)
    return Operation.objects.using(using).create(
        verb=verb,
        operator=check_text(operator, option="operator", max_length=255),
        reason=reason,
        state=Operation.State.RUNNING,
        selection=chosen.to_json(),
        snapshot=shown,
        cursor={"place": chosen.after_seq or 0},
        details={"force": True} if force else {},
    )


def _chosen(ids: Iterable[UUID] | None, selection: Selection | Mapping[str, Any] | None) -> Selection:
    if ids is None:
        document = {} if selection is None else selection
        return document if isinstance(document, Selection) else Selection.from_json(document)
    if selection is not None:
        raise InvalidOption("ids", "cannot be given together with a selection")
    return Selection(ids=tuple(ids))


def _bounded(selection: Selection, using: str) -> Selection:
    """With the numbers of the first and the last job that there is now, unless it names its jobs or has a bound."""
    if selection.is_named:
        return selection
    first, last = selection.after_seq, selection.until_seq
    return replace(
        selection,
        after_seq=paging.first_number(using) if first is None else first,
        until_seq=paging.last_number(using) if last is None else last,
    )


def selection_of(operation: Operation) -> Selection:
    """The jobs that an operation means, as they were shown. Raises ``InvalidOption`` if what is stored is no selection.

    The snapshot has a column of its own, because it can be large.
    """
    return replace(Selection.from_json(operation.selection), snapshot=operation.snapshot or None)


def advance_operation(operation: Operation, *, seconds: float = 1.0, using: str | None = None) -> Operation:
    """Go on for about that long, and return how far it got; at once when it has ended or was stopped.

    Two processes that advance the same operation take turns.
    """
    deadline = time.monotonic() + seconds
    for bit in bits(operation, using=using):
        operation = bit.operation
        if time.monotonic() >= deadline:
            break
    return operation


def bits(operation: Operation, *, using: str | None = None) -> Iterator[Bit]:
    """Advance an operation to its end, and tell what each committed bit did."""
    using = database(using)
    while True:
        bit = in_transaction(using, partial(_advance, operation.pk, using))
        yield bit
        if bit.operation.state != Operation.State.RUNNING:
            return


def advance_operations(*, seconds: float = 5.0, using: str | None = None) -> dict[str, int]:
    """Continue, for about that long, the operations that no process advances; returns how many jobs each verb moved.

    This is what housekeeping processes call. An operation that another process is advancing is left to it.
    """
    using = database(using)
    deadline = time.monotonic() + seconds
    moved: dict[str, int] = {}
    failures: list[Exception] = []
    for id in _idle(using):
        try:
            for bit in _bits_until(deadline, id, using):
                verb = bit.operation.verb
                moved[verb] = moved.get(verb, 0) + len(bit.moved)
        except Exception as failure:  # one operation that fails must not keep the others from going on
            failures.append(failure)
    if failures:
        raise failures[0]
    return moved


def _bits_until(deadline: float, id: UUID, using: str) -> Iterator[Bit]:
    while time.monotonic() < deadline:
        bit = in_transaction(using, partial(_continue, id, using))
        if bit is None:
            return
        yield bit
        if bit.operation.state != Operation.State.RUNNING:
            return


def _idle(using: str) -> list[UUID]:
    """Running operations that no process has advanced lately, the longest neglected first."""
    running = Operation.objects.using(using).filter(state=Operation.State.RUNNING).annotate(now=StatementTimestamp())
    found = [(_advanced_at(each), each.pk) for each in running.only("cursor", "started_at") if _is_idle(each)]
    return [id for _, id in sorted(found)]


def _is_idle(operation: Any) -> bool:
    return bool(abs(operation.now - _advanced_at(operation)) >= timedelta(seconds=IDLE_SECONDS))


def _advanced_at(operation: Operation) -> Any:
    """When it was advanced last; the time it began if it never was."""
    noted = (operation.cursor or {}).get("advanced_at")
    return operation.started_at if noted is None else parse_datetime(noted)


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


def _continue(id: UUID, using: str) -> Bit | None:
    """One bit, unless another process has the operation locked: it is advancing it."""
    running = Operation.objects.using(using).filter(pk=id, state=Operation.State.RUNNING)
    if not list(running.select_for_update(skip_locked=True).values_list("pk")):
        return None
    try:
        return _advance(id, using)
    except InvalidOption as error:  # stored by another version; tried again it would only fail again
        logger.error(
            "operation stopped: its selection cannot be read: %s: %s",
            id,
            error_line(error),
            extra={"operation": id, "error": str(error)},
        )
        running.update(state=Operation.State.STOPPED, finished_at=StatementTimestamp())
        return None


def _advance(id: UUID, using: str) -> Bit:
    operation = Operation.objects.using(using).select_for_update().annotate(now=StatementTimestamp()).get(pk=id)
    if operation.state != Operation.State.RUNNING:
        return Bit(operation)
    selection = selection_of(operation)
    ids, place, more = _next(operation, selection, using)
    moved, refused = VERBS[operation.verb].run(ids, operation, using) if ids else ([], {})
    kept = operation.details.get("refused", {})
    kept |= {str(one): why for one, why in list(refused.items())[: max(0, REFUSALS_KEPT - len(kept))]}
    later = {} if more else _came_later(operation, selection, using)
    Operation.objects.using(using).filter(pk=id).update(
        cursor={"place": place, "advanced_at": operation.now.isoformat()},
        moved=F("moved") + len(moved),
        refused=F("refused") + len(refused),
        details={**operation.details, "refused": kept, **later},
        **({} if more else {"state": Operation.State.DONE, "finished_at": StatementTimestamp()}),
    )
    return Bit(Operation.objects.using(using).get(pk=id), moved, refused)


def _next(operation: Operation, selection: Selection, using: str) -> tuple[list[UUID], int, bool]:
    """The jobs whose turn it is, where the next bit begins, and whether there is one."""
    place = int((operation.cursor or {}).get("place", 0))
    if selection.ids is not None:
        after = place + AT_ONCE
        return list(selection.ids[place:after]), after, after < len(selection.ids)
    # The place is the bound at this end; a second one would only mislead the planner.
    meant = shown_jobs(operation.verb, replace(selection, after_seq=None), using)
    piece = paging.look(meant.only("seq"), AT_ONCE, after=place)
    more = piece.more and (selection.until_seq is None or piece.place < selection.until_seq)
    return [job.pk for job in piece.jobs], piece.place, more


def shown_jobs(verb: str, selection: Selection, using: str) -> QuerySet[Job]:
    """The jobs of a selection that the verb takes, if they became so before its snapshot."""
    return Seen(verb, selection.snapshot or "").among(_taken(verb, selection, using))


def _taken(verb: str, selection: Selection, using: str) -> JobQuerySet:
    return Job.objects.using(using).selected(selection).in_state(*VERBS[verb].takes)


def _came_later(operation: Operation, selection: Selection, using: str) -> dict[str, int]:
    """How many jobs the filters find that became what the verb takes after they were shown; they were not touched."""
    if selection.is_named or not selection.snapshot:
        return {}
    now = replace(selection, after_seq=None, until_seq=None)
    counted = paging.count(Seen(operation.verb, selection.snapshot).later(_taken(operation.verb, now, using)))
    among = {} if counted.among is None else {"came_later_among": counted.among}
    return {"came_later": counted.number, **among}


def current_snapshot(*, using: str | None = None) -> str:
    """What is committed now, as text: ask for it before you show jobs, and give it to :func:`begin_operation`."""
    return str(rows(database(using), sql.session.SNAPSHOT)[0][0])
