"""The subcommands that change jobs or queues: send, retry, skip, cancel, delete, purge, pause, resume, maintain.

``resume_operation`` continues an interrupted operation.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from django.core.management.color import Style

from .. import maintenance, services
from ..exceptions import InvalidData, InvalidOption, InvalidTransition, JobNotFound
from ..models import Job, Operation
from ..options import check_state
from ..selection import Selection
from ..services.operations import VERBS, bits, shown_jobs
from ..services.queues import find_queue
from ..states import FINAL, JobState
from .answers import Answer, Code, plural, table
from .selection import selected

SHOWN = 20  # ids and refusals in the text; the JSON has all of them
UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Confirm(Protocol):
    def __call__(self, question: str) -> bool: ...


def seconds(text: str) -> float:
    """For argparse: ``90``, ``1.5``, ``5m``, ``2h``, ``1d``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"expected seconds, or a number with s, m, h or d, got {text[:40]!a}")
    return float(match[1]) * UNITS[match[2]]


# -------------------------------------------------------------------------------------------------------------- send


def send(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Store a job."""
    job = services.send(
        options["queue"],
        _data(options["data"]),
        name=options["name"],
        singleton_key=options["key"],
        group_key=options["group"],
        priority=options["priority"],
        delay=options["delay"],
        tags=options["tag"] or (),
        using=using,
    )
    if job is None:
        text = f"Nothing was sent: the policy of {options['queue']!r} allows no other job now."
        return Answer({"sent": False, "id": None, "queue": options["queue"]}, text, Code.FOUND)
    document = {"sent": True, "id": job.pk, "queue": job.queue_id, "start_after": job.start_after}
    return Answer(document, f"Sent {job.pk} to {job.queue_id}.")


def _data(text: str | None) -> Any:
    if text is None:
        return None
    source = "the standard input" if text == "-" else "data"
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        hint = "A string needs JSON quotes: '\"text\"'." if text != "-" else ""
        raise InvalidData(source, f"is not valid JSON: {str(error)[:100]}", hint=hint) from error


# ------------------------------------------------------------------------------------ retry, skip, cancel and delete


def retry(options: dict[str, Any], style: Style, using: str, confirm: Confirm) -> Answer:
    """Give jobs that failed for good another attempt."""

    def by_ids(ids: list[UUID], _: str | None) -> Answer:
        outcome = services.retry(ids, **_noted(options), using=using)
        return _did("retry", outcome.moved, outcome.refused)

    return _act("retry", options, using, lambda _: True, by_ids)


def skip(options: dict[str, Any], style: Style, using: str, confirm: Confirm) -> Answer:
    """End jobs that failed for good, and jobs that wait for a retry; their keys continue."""

    def by_ids(ids: list[UUID], snapshot: str | None) -> Answer:
        outcome = services.skip(ids, **_noted(options), snapshot=snapshot, using=using)
        return _did("skip", outcome.moved, outcome.refused)

    return _act("skip", options, using, confirm, by_ids)


def cancel(options: dict[str, Any], style: Style, using: str, confirm: Confirm) -> Answer:
    """Cancel waiting and running jobs."""

    def by_ids(ids: list[UUID], _: str | None) -> Answer:
        result = services.cancel(ids, force=options["force"], **_noted(options), using=using)
        return _did("cancel", result.cancelled, {id: _refusal(result.previous.get(id)) for id in result.unknown})

    return _act("cancel", options, using, confirm, by_ids)


def delete(options: dict[str, Any], style: Style, using: str, confirm: Confirm) -> Answer:
    """Delete finished jobs: with ids all or none, with filters in batches."""

    def by_ids(ids: list[UUID], _: str | None) -> Answer:
        services.delete(ids, **_noted(options), using=using)
        return _did("delete", ids, {})

    return _act("delete", options, using, confirm, by_ids)


def _act(
    verb: str,
    options: dict[str, Any],
    using: str,
    confirm: Confirm,
    by_ids: Callable[[list[UUID], str | None], Answer],
) -> Answer:
    """Ask for confirmation, then apply the verb: to ids at once, to filters as an operation that can be continued."""
    selection = selected(verb, options, using)
    number = _number(verb, selection, using)
    if options["dry_run"] or not number:
        return _would(verb, _ids(verb, selection, using), VERBS[verb].takes, using)
    if number > 1 and not confirm(f"{verb.capitalize()} {plural(number, 'job')}?"):
        return NOT_CONFIRMED
    if selection.ids is not None:
        return by_ids(list(selection.ids), selection.snapshot)
    operation = services.begin_operation(
        verb,
        selection=selection,
        **_noted(options),
        force=options.get("force", False),
        using=using,
    )
    return _carry_out(operation, using)


def _number(verb: str, selection: Selection, using: str) -> int:
    return shown_jobs(verb, selection, using).count() if selection.ids is None else len(selection.ids)


def _ids(verb: str, selection: Selection, using: str) -> list[UUID]:
    if selection.ids is not None:
        return list(selection.ids)
    return list(shown_jobs(verb, selection, using).order_by("seq").values_list("pk", flat=True))


def _carry_out(operation: Operation, using: str) -> Answer:
    """Run an operation to its end. Ctrl-C stops it; after a crash the housekeeping process of a worker continues it."""
    moved: list[UUID] = []
    refused: dict[UUID, str] = {}
    try:
        for bit in bits(operation, using=using):
            operation = bit.operation
            moved += bit.moved
            refused |= bit.refused
    except KeyboardInterrupt:
        services.stop_operation(operation, using=using)
        raise KeyboardInterrupt(_how_to_continue(operation)) from None
    answer = _did(operation.verb, moved, refused, number=operation.moved)
    if operation.state != Operation.State.DONE:
        answer.text += f"\n{_how_to_continue(operation)}"
        answer.code = Code.FOUND
    return answer


def _how_to_continue(operation: Operation) -> str:
    return f"Operation {operation.pk} is stopped; manage.py jobs resume_operation {operation.pk} continues it."


def resume_operation(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Continue an operation that was stopped or interrupted, to its end."""
    operation = Operation.objects.using(using).filter(pk=options["id"]).first()
    if operation is None:
        raise InvalidOption("id", f"there is no operation {options['id']}", hint="jobs operations lists them.")
    services.resume_operation(operation, **_noted(options), using=using)
    operation.refresh_from_db(using=using)
    if operation.state != Operation.State.RUNNING:
        document = {"verb": operation.verb, "dry_run": False, "number": operation.moved, "moved": [], "refused": {}}
        return Answer(document, f"Operation {operation.pk} has ended: {plural(operation.moved, 'job')} changed.")
    return _carry_out(operation, using)


def purge(options: dict[str, Any], style: Style, using: str, confirm: Confirm) -> Answer:
    """Delete all jobs of a queue, or those in one state, also running ones."""
    queue = find_queue(options["queue"], using).name
    state = None if options["state"] is None else check_state(options["state"])
    jobs = Job.objects.using(using).in_queue(queue)
    if options["dry_run"]:
        return _would_purge(queue, jobs if state is None else jobs.in_state(state))
    what = f"all {state} jobs" if state else "all jobs"
    if not confirm(f"Delete {what} of the queue {queue!r}, also running ones?"):
        return NOT_CONFIRMED
    number = services.purge(queue, state, **_noted(options), using=using)
    document = {"verb": "purge", "dry_run": False, "queue": queue, "number": number}
    return Answer(document, f"Deleted {plural(number, 'job')} of {queue}.")


NOT_CONFIRMED = Answer({"called_off": True}, "Nothing was done.", Code.FOUND)


def _refusal(state: JobState | None) -> str:
    return "there is no such job" if state is None else f"it is {state}"


_DONE = {"retry": "Retried", "skip": "Skipped", "cancel": "Cancelled", "delete": "Deleted"}


def _did(verb: str, moved: list[UUID], refused: dict[UUID, str], *, number: int | None = None) -> Answer:
    """The answer to an operation; ``number`` also counts jobs that another process changed, which are not listed."""
    number = len(moved) if number is None else number
    document = {
        "verb": verb,
        "dry_run": False,
        "number": number,
        "moved": moved,
        "refused": {str(id): why for id, why in refused.items()},
    }
    lines = [f"{_DONE[verb]} {plural(number, 'job')}.", *_refusals(refused)]
    return Answer(document, "\n".join(lines), Code.FOUND if refused else Code.FINE)


def _would(verb: str, ids: list[UUID], takes: frozenset[JobState], using: str) -> Answer:
    """What the verb would do, read without locking or writing anything."""
    states = dict(Job.objects.using(using).filter(pk__in=ids).values_list("pk", "state"))
    moved = [id for id in ids if states.get(id) in takes]
    refused = {id: _refusal(JobState(states[id]) if id in states else None) for id in ids if id not in set(moved)}
    if verb == "delete" and refused:  # all or none
        id = next(iter(refused))
        if id not in states:
            raise JobNotFound(id)
        raise InvalidTransition(job_id=id, state=states[id], wanted="deleted", allowed=FINAL)
    answer = _did(verb, moved, refused)
    answer.document["dry_run"] = True
    by_state = Counter(states[id] for id in moved)
    counts = ", ".join(f"{number:,} {state}" for state, number in sorted(by_state.items()))
    lines = [f"Would {verb} {plural(len(moved), 'job')}{f' ({counts})' if counts else ''}."]
    lines += [f"  {id}" for id in moved[:SHOWN]]
    if len(moved) > SHOWN:
        lines.append(f"  … and {len(moved) - SHOWN:,} more")
    answer.text = "\n".join([*lines, *_refusals(refused)])
    return answer


def _refusals(refused: dict[UUID, str]) -> list[str]:
    lines = [f"Refused {id}: {why}." for id, why in list(refused.items())[:SHOWN]]
    return lines + ([f"Refused {len(refused) - SHOWN:,} more."] if len(refused) > SHOWN else [])


def _would_purge(queue: str, jobs: Any) -> Answer:
    number = jobs.count()
    document = {"verb": "purge", "dry_run": True, "queue": queue, "number": number}
    return Answer(document, f"Would delete {plural(number, 'job')} of {queue}.")


# ---------------------------------------------------------------------------------------------- queues, maintenance


def pause(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Stop fetching jobs of a queue."""
    services.pause(options["queue"], **_noted(options), using=using)
    return Answer(
        _queue(options, using), f"{options['queue']} is paused: running jobs continue, and new jobs are accepted."
    )


def resume(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Fetch jobs of a queue again."""
    services.resume(options["queue"], **_noted(options), using=using)
    return Answer(_queue(options, using), f"{options['queue']} is resumed: its jobs are fetched again.")


def _noted(options: dict[str, Any]) -> dict[str, Any]:
    return {"operator": options["operator"], "reason": options["reason"] or ""}


def _queue(options: dict[str, Any], using: str) -> dict[str, Any]:
    queue = find_queue(options["queue"], using)
    return {"queue": queue.name, "paused_at": queue.paused_at}


def maintain(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Run one pass of maintenance."""
    report = maintenance.maintain(using=using)
    if report.skipped:
        return Answer(report.as_dict(), "Another process is running maintenance.")
    rows = [[step.name, step.number, _by_queue(step.done), f"{step.seconds:.3f}", step.error] for step in report.steps]
    text = table(("step", "number", "of which", "seconds", "error"), rows, style)
    return Answer(report.as_dict(), text, Code.FOUND if report.errors else Code.FINE)


def _by_queue(done: dict[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in sorted(done.items()) if number)
