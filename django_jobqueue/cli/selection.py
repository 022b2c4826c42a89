"""Which jobs are meant: by their ids, or by filters."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any
from uuid import UUID

from .. import services
from ..exceptions import InvalidOption, JobQueueError
from ..identifiers import as_uuid
from ..selection import Selection
from ..services.operations import VERBS, shown_jobs
from ..services.queues import find_queue
from ..text import check_text

FILTERS = ("queue", "state", "key", "tag", "handler", "worker")


def job_id(text: str) -> UUID:
    """For argparse: an id, or a sentence that says what one looks like."""
    try:
        return as_uuid(text)
    except JobQueueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_filters(parser: argparse.ArgumentParser) -> None:
    """The filters that every subcommand about several jobs has."""
    filters = parser.add_argument_group("filters", "Given several, jobs must satisfy all of them.")
    filters.add_argument("--queue", metavar="NAME", help="jobs of this queue")
    filters.add_argument("--state", metavar="STATE", action="append", help="in this state; may be repeated")
    filters.add_argument("--key", metavar="KEY", help="with this singleton key")
    filters.add_argument("--tag", metavar="TAG", action="append", help="with this tag; repeated, with all of them")
    filters.add_argument("--handler", metavar="NAME", help="for the handler of this name")
    filters.add_argument("--worker", metavar="NAME", help="last assigned to this worker")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Ids or filters."""
    parser.add_argument("ids", metavar="ID", nargs="*", type=job_id, help="the id of a job")
    add_filters(parser)
    parser.add_argument("--limit", metavar="N", type=int, help="of what the filters find, at most N, oldest first")


def filters_of(options: dict[str, Any], using: str) -> Selection:
    """The jobs that the filters mean. Raises ``QueueNotFound`` and ``InvalidOption``."""
    given = {name: options[name] for name in ("key", "handler", "worker") if options[name] is not None}
    texts: dict[str, Any] = {name: check_text(text, option=name, max_length=255) for name, text in given.items()}
    return Selection(
        queue=None if options["queue"] is None else find_queue(options["queue"], using).name,
        states=options["state"] or None,
        tags=options["tag"] or None,
        **texts,
    )


def selected(verb: str, options: dict[str, Any], using: str) -> Selection:
    """The jobs that are meant, as they are now: those that change before the operator has confirmed are left alone.

    Raises ``InvalidOption`` for both ids and filters, for neither, and for a state that the verb never takes.
    """
    snapshot = services.current_snapshot(using=using)
    given = [name for name in FILTERS if options[name] not in (None, [])]
    if options["ids"]:
        if given or options["limit"] is not None:
            raise InvalidOption("ids", f"cannot be given together with --{(given or ['limit'])[0]}")
        return Selection(ids=options["ids"], snapshot=snapshot)
    if not given:
        hint = "To empty a queue there is purge." if verb == "delete" else ""
        raise InvalidOption("ids", f"{verb} needs ids or filters", hint=hint)
    selection = replace(filters_of(options, using), snapshot=snapshot)
    takes = sorted(str(state) for state in VERBS[verb].takes)
    for state in selection.states or ():
        if state not in takes:
            raise InvalidOption("state", f"{verb} takes no {state} jobs", hint=f"It takes {', '.join(takes)}.")
    return _oldest(verb, selection, limit_of(options), using)


def _oldest(verb: str, selection: Selection, limit: int | None, using: str) -> Selection:
    """As many of them, the oldest: those up to the number of the last."""
    if limit is None:
        return selection
    numbers = list(shown_jobs(verb, selection, using).order_by("seq").values_list("seq", flat=True)[:limit])
    return replace(selection, until_seq=numbers[-1] if numbers else 0)


def limit_of(options: dict[str, Any]) -> int | None:
    """``--limit``, if it is one. Raises ``InvalidOption``."""
    limit: int | None = options["limit"]
    if limit is not None and limit < 1:
        raise InvalidOption("limit", f"expected 1 or more, got {limit}")
    return limit
