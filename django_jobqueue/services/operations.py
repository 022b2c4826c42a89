"""Operations: acts of an operator on many jobs, done in small steps whose progress is stored.

Each step is one transaction together with the record of its progress. So an operation that was interrupted, by a closed
browser or a crash, continues exactly where it was. Its selection is stored with it, so that any process can continue
it: the page in the admin, the command that began it, and the housekeeping process of every worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F, QuerySet
from django.utils.dateparse import parse_datetime

from ..conf import get_settings
from ..engine import paging, sql
from ..engine.databases import database, rows
from ..engine.queues import check_exists
from ..engine.records import Note, keep_jobs, noted
from ..engine.redrive import redrive_some
from ..engine.snapshots import Seen, check_snapshot
from ..engine.transactions import in_transaction
from ..exceptions import InvalidOption
from ..expressions import StatementTimestamp
from ..log_texts import error_line, error_text
from ..models import Job, Operation, OperationBatch
from ..querysets import JobQuerySet
from ..selection import Selection
from ..states import FINAL, OCCUPIED, REDRIVABLE, RETRIABLE, SKIPPABLE, JobState
from ..text import check_text, clean_text
from .operator import AT_ONCE, cancel, delete_each, not_cancelled, retry, skip

logger = logging.getLogger("django_jobqueue.operations")

REFUSALS_KEPT = 1_000
# Triggers of the tables refuse to delete them earlier.
KEEP_OPERATIONS = timedelta(days=365)
KEEP_JOBS = timedelta(days=90)
FORGOTTEN_AT_ONCE = 1_000
# A housekeeping process continues operations that no process has advanced for this long. The admin and the command line
# advance theirs more often, so a housekeeping process does not interfere with them.
IDLE_SECONDS = 10.0


class Done(NamedTuple):
    """The jobs that moved, and the refused ones with the reason; a redrive also says what became of the moved ones."""

    moved: list[UUID]
    refused: dict[UUID, str]
    counts: Mapping[str, int] = MappingProxyType({})
    became: Mapping[UUID, UUID] = MappingProxyType({})  # the job that does the work of a moved one


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb for many jobs: the states of jobs that it takes, and the function that applies it to some of them."""

    takes: frozenset[JobState]
    run: Callable[[list[UUID], Operation, str], Done]
    needs_reason: bool = False


def _retry(ids: list[UUID], operation: Operation, using: str) -> Done:
    outcome = retry(ids, **_noted(operation), using=using)
    return Done(outcome.moved, outcome.refused)


def _skip(ids: list[UUID], operation: Operation, using: str) -> Done:
    outcome = skip(ids, **_noted(operation), using=using)
    return Done(outcome.moved, outcome.refused)


def _noted(operation: Operation) -> dict[str, Any]:
    return {
        "operator": operation.operator,
        "reason": operation.reason,
        "record": False,
        "snapshot": operation.snapshot or None,
    }


def _cancel(ids: list[UUID], operation: Operation, using: str) -> Done:
    force = bool(operation.details.get("force"))
    result = cancel(ids, force=force, snapshot=operation.snapshot or None, record=False, using=using)
    return Done(result.cancelled, {id: not_cancelled(result.previous.get(id)) for id in result.unknown})


def _delete(ids: list[UUID], operation: Operation, using: str) -> Done:
    outcome = delete_each(ids, snapshot=operation.snapshot or None, using=using)
    return Done(outcome.moved, outcome.refused)


def _redrive(ids: list[UUID], operation: Operation, using: str) -> Done:
    seen = Seen("redrive", operation.snapshot) if operation.snapshot else None
    done = redrive_some(using, ids, to=operation.details.get("to"), seen=seen)
    counts = {"retried": len(done.retried), "sent": len(done.sent), "removed": len(done.removed)}
    became = done.retried | done.sent | done.removed
    return Done(list(became), done.refused, counts, became)


VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "retry": Verb(RETRIABLE, _retry),
        "skip": Verb(SKIPPABLE, _skip, needs_reason=True),
        "cancel": Verb(OCCUPIED, _cancel),
        "delete": Verb(FINAL, _delete),
        "redrive": Verb(REDRIVABLE, _redrive),
    }
)


@dataclass(frozen=True, slots=True)
class Bit:
    """One committed step of an operation: the operation after the step, and the jobs it moved and refused."""

    operation: Operation
    moved: list[UUID] = field(default_factory=list)
    refused: dict[UUID, str] = field(default_factory=dict)
    became: Mapping[UUID, UUID] = field(default_factory=dict)


def begin_operation(
    verb: str,
    *,
    ids: Iterable[UUID] | None = None,
    selection: Selection | Mapping[str, Any] | None = None,
    operator: str,
    reason: str = "",
    snapshot: str | None = None,
    shown_at: datetime | None = None,
    confirmation: UUID | None = None,
    force: bool = False,
    to: str | None = None,
    using: str | None = None,
) -> Operation:
    """Record an operation on these jobs, or on all jobs of a selection; :func:`advance_operation` carries it out.

    ``verb`` is one of retry, skip, cancel, delete and redrive. The ``selection`` is a ``Selection`` or its JSON. Only
    jobs that were already in their state at the ``snapshot`` are included. Pass the snapshot that
    :func:`current_snapshot` returned when the jobs were shown; the default is a snapshot taken by this call. Jobs
    selected by id that changed after the snapshot are refused. Of other selections, jobs that came later are counted
    at the end, as ``details["came_later"]``. ``shown_at`` is the time of the snapshot, for the record. ``force`` is an
    option of :func:`cancel`, ``to`` one of :func:`redrive`.

    With a ``confirmation``, the id of a page that asked for it, the operation is recorded once: another call with this
    id returns the operation of the first.

    Raises ``InvalidOption`` for an unknown verb, an invalid selection or snapshot, and a missing reason if the verb
    needs one; and ``QueueNotFound``.
    """
    using = database(using)
    if verb not in VERBS:
        raise InvalidOption("verb", f"expected one of {', '.join(VERBS)}, got {str(verb)[:40]!a}")
    if force and verb != "cancel":
        raise InvalidOption("force", f"{verb} cannot be forced")
    if to is not None and verb != "redrive":
        raise InvalidOption("to", f"{verb} sends no jobs to another queue")
    reason = clean_text(reason, max_chars=get_settings().MAX_ERROR_CHARS).strip()
    if VERBS[verb].needs_reason and not reason:
        raise InvalidOption("reason", "expected a text that says why", hint="It is kept with the job.")
    chosen = _chosen(ids, selection)
    snapshot = chosen.snapshot if snapshot is None else snapshot
    shown = current_snapshot(using=using) if snapshot is None else check_snapshot(snapshot, using)
    chosen = _bounded(replace(chosen, snapshot=None), using)
    details: dict[str, Any] = {"shown_at": shown_at.isoformat()} if shown_at else {}
    if force:
        details["force"] = True
    if to is not None:
        details["to"] = check_exists(to, using).name
    values = {
        "verb": verb,
        "operator": check_text(operator, option="operator", max_length=255),
        "reason": reason,
        "queue": chosen.queue or "",
        "state": Operation.State.RUNNING,
        "selection": chosen.to_json(),
        "snapshot": shown,
        "cursor": {"place": chosen.after_seq or 0},
        "details": details,
    }
    operations = Operation.objects.using(using)
    if confirmation is None:
        return operations.create(**values)
    operation, _ = operations.get_or_create(confirmation=confirmation, defaults=values)
    return operation


def _chosen(ids: Iterable[UUID] | None, selection: Selection | Mapping[str, Any] | None) -> Selection:
    if ids is None:
        document = {} if selection is None else selection
        return document if isinstance(document, Selection) else Selection.from_json(document)
    if selection is not None:
        raise InvalidOption("ids", "cannot be given together with a selection")
    return Selection(ids=tuple(ids))


def _bounded(selection: Selection, using: str) -> Selection:
    """The selection, bounded by the numbers of the first and the last job there is now, if it has no bounds or ids."""
    if selection.is_named:
        return selection
    first, last = selection.after_seq, selection.until_seq
    return replace(
        selection,
        after_seq=paging.first_number(using) if first is None else first,
        until_seq=paging.last_number(using) if last is None else last,
    )


def selection_of(operation: Operation) -> Selection:
    """The stored selection of an operation, with its snapshot. Raises ``InvalidOption`` if it cannot be read.

    The snapshot has its own column, because it can be large.
    """
    return replace(Selection.from_json(operation.selection), snapshot=operation.snapshot or None)


def advance_operation(operation: Operation, *, seconds: float = 1.0, using: str | None = None) -> Operation:
    """Advance an operation for about this many seconds, and return it with its progress.

    Returns at once if the operation has ended or was stopped. Two processes that advance the same operation take turns.
    """
    deadline = time.monotonic() + seconds
    for bit in bits(operation, using=using):
        operation = bit.operation
        if time.monotonic() >= deadline:
            break
    return operation


def bits(operation: Operation, *, using: str | None = None) -> Iterator[Bit]:
    """Advance an operation to its end, and yield each committed step."""
    using = database(using)
    while True:
        bit = in_transaction(using, partial(_advance, operation.pk, using))
        yield bit
        if bit.operation.state != Operation.State.RUNNING:
            return


def advance_operations(*, seconds: float = 5.0, using: str | None = None) -> dict[str, int]:
    """Continue idle operations for about this many seconds, and return the number of jobs that each verb moved.

    Housekeeping processes call this. Operations that another process is advancing are skipped.
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
        except Exception as failure:  # one failing operation must not stop the others
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
    """The ids of running operations that no process has advanced lately, the longest idle first."""
    running = Operation.objects.using(using).filter(state=Operation.State.RUNNING).annotate(now=StatementTimestamp())
    idle = [(_advanced_at(each), each.pk) for each in running.only("cursor", "started_at") if _is_idle(each)]
    return [id for _, id in sorted(idle)]


def _is_idle(operation: Any) -> bool:
    return bool(abs(operation.now - _advanced_at(operation)) >= timedelta(seconds=IDLE_SECONDS))


def _advanced_at(operation: Operation) -> Any:
    """When the operation was last advanced, or when it began."""
    noted = (operation.cursor or {}).get("advanced_at")
    return operation.started_at if noted is None else parse_datetime(noted)


def stop_operation(operation: Operation, *, operator: str = "", reason: str = "", using: str | None = None) -> bool:
    """Stop a running operation where it is; return whether it was running. Its record keeps who stopped it, and why."""
    return _switch("stop", operation, noted(operator, reason), database(using))


def resume_operation(operation: Operation, *, operator: str = "", reason: str = "", using: str | None = None) -> bool:
    """Resume a stopped operation; return whether it was stopped. Its record keeps who resumed it, and why."""
    return _switch("resume", operation, noted(operator, reason), database(using))


_SWITCHES = MappingProxyType(
    {
        "stop": (Operation.State.RUNNING, Operation.State.STOPPED),
        "resume": (Operation.State.STOPPED, Operation.State.RUNNING),
    }
)


def _switch(verb: str, operation: Operation, note: Note, using: str) -> bool:
    was, state = _SWITCHES[verb]
    operations = Operation.objects.using(using).filter(pk=operation.pk, state=was)
    finished = None if state == Operation.State.RUNNING else StatementTimestamp()

    def work() -> bool:
        row: Any = operations.select_for_update().annotate(now=StatementTimestamp()).first()
        if row is None:
            return False
        switch = {"verb": verb, "operator": note.operator, "reason": note.reason, "at": row.now.isoformat()}
        details = {**row.details, "switches": [*row.details.get("switches", []), switch]}
        operations.update(state=state, finished_at=finished, details=details)
        return True

    return in_transaction(using, work)


def forget_old_operations(*, using: str) -> dict[str, int]:
    """Delete the jobs of operations that ended long ago, and later the operations; return the numbers of rows."""
    now = StatementTimestamp()
    batches = OperationBatch.objects.using(using).filter(operation__finished_at__lte=now - KEEP_JOBS)
    some = OperationBatch.objects.using(using).filter(pk__in=batches.values("pk")[:FORGOTTEN_AT_ONCE])
    old = Operation.objects.using(using).filter(finished_at__lte=now - KEEP_OPERATIONS)
    return {
        "operation_batches": some._raw_delete(using),
        "operations": old._raw_delete(using),
    }


def _continue(id: UUID, using: str) -> Bit | None:
    """Do one step, unless another process has locked the operation: it is advancing it."""
    running = Operation.objects.using(using).filter(pk=id, state=Operation.State.RUNNING)
    if not list(running.select_for_update(skip_locked=True).values_list("pk")):
        return None
    try:
        return _advance(id, using)
    except InvalidOption as error:  # stored by another version: another try would fail again
        logger.error(
            "operation stopped: its selection cannot be read: %s: %s",
            id,
            error_line(error),
            extra={"operation": id, "error": error_text(error)},
        )
        running.update(state=Operation.State.STOPPED, finished_at=StatementTimestamp())
        return None


def _advance(id: UUID, using: str) -> Bit:
    operations = Operation.objects.using(using).select_for_update().annotate(now=StatementTimestamp())
    operation: Any = operations.get(pk=id)
    if operation.state != Operation.State.RUNNING:
        return Bit(operation)
    selection = selection_of(operation)
    ids, place, more = _next(operation, selection, using)
    moved, refused, counts, became = VERBS[operation.verb].run(ids, operation, using) if ids else Done([], {})
    kept = operation.details.get("refused", {})
    kept |= {str(job_id): why for job_id, why in list(refused.items())[: max(0, REFUSALS_KEPT - len(kept))]}
    keep_jobs(id, list(dict.fromkeys(became.get(job_id, job_id) for job_id in moved)), using)
    later = {} if more else _came_later(operation, selection, using)
    before = counts_of(operation)
    Operation.objects.using(using).filter(pk=id).update(
        cursor={
            "place": place,
            "advanced_at": operation.now.isoformat(),
            **{name: number + counts.get(name, 0) for name, number in before.items()},
        },
        moved=F("moved") + len(moved),
        refused=F("refused") + len(refused),
        details={**operation.details, **_became(operation.details, became), "refused": kept, **later},
        **({} if more else {"state": Operation.State.DONE, "finished_at": StatementTimestamp()}),
    )
    return Bit(Operation.objects.using(using).get(pk=id), moved, refused, became)


def counts_of(operation: Operation) -> dict[str, int]:
    """How many letters a redrive has moved so far, by what became of them; empty for another verb."""
    names = ("retried", "sent", "removed") if operation.verb == "redrive" else ()
    return {name: int((operation.cursor or {}).get(name, 0)) for name in names}


def _became(details: Mapping[str, Any], became: Mapping[UUID, UUID]) -> dict[str, dict[str, str]]:
    """What became of the first dead letters of a redrive, to be stored with the operation."""
    stored = details.get("became", {})
    first = list(became.items())[: max(0, REFUSALS_KEPT - len(stored))]
    return {"became": stored | {str(letter): str(job) for letter, job in first}} if first else {}


def _next(operation: Operation, selection: Selection, using: str) -> tuple[list[UUID], int, bool]:
    """The jobs of the next step, the place where the step after it begins, and whether there is one."""
    place = int((operation.cursor or {}).get("place", 0))
    if selection.ids is not None:
        after = place + AT_ONCE
        return list(selection.ids[place:after]), after, after < len(selection.ids)
    # The place already is the lower bound; a second bound would mislead the planner.
    jobs = shown_jobs(operation.verb, replace(selection, after_seq=None), using)
    piece = paging.look(jobs.only("seq"), AT_ONCE, after=place)
    more = piece.more and (selection.until_seq is None or piece.place < selection.until_seq)
    return [job.pk for job in piece.jobs], piece.place, more


def shown_jobs(verb: str, selection: Selection, using: str) -> QuerySet[Job]:
    """The jobs of a selection that the verb takes, and that were in their state before its snapshot."""
    return Seen(verb, selection.snapshot or "").among(_taken(verb, selection, using))


def _taken(verb: str, selection: Selection, using: str) -> JobQuerySet:
    jobs = Job.objects.using(using).selected(selection).in_state(*VERBS[verb].takes)
    # Of a whole queue, a redrive also reports the jobs that it cannot move because they are no copies.
    return jobs.copied() if verb == "redrive" and selection.queue is None else jobs


def _came_later(operation: Operation, selection: Selection, using: str) -> dict[str, int]:
    """The number of jobs that the filters match only since the jobs were shown; they were not changed."""
    if selection.is_named or not selection.snapshot:
        return {}
    now = replace(selection, after_seq=None, until_seq=None)
    counted = paging.count(Seen(operation.verb, selection.snapshot).later(_taken(operation.verb, now, using)))
    among = {} if counted.among is None else {"came_later_among": counted.among}
    return {"came_later": counted.number, **among}


@dataclass(frozen=True, slots=True)
class Shown:
    """A snapshot of the database, and its time."""

    snapshot: str
    at: datetime


def shown_now(*, using: str) -> Shown:
    """The current snapshot and the database's time, to be taken before jobs are read that a page shows."""
    return Shown(*rows(using, sql.session.SHOWN)[0])


def confirmed(confirmation: UUID, *, using: str) -> Operation | None:
    """The operation that was begun with this confirmation, if any."""
    return Operation.objects.using(using).filter(confirmation=confirmation).first()


def current_snapshot(*, using: str | None = None) -> str:
    """Return the database's current snapshot as text: take it before you show jobs, and pass it to the verb.

    Verbs that take a ``snapshot`` do not change jobs that changed after it.
    """
    return str(rows(database(using), sql.session.SNAPSHOT)[0][0])
