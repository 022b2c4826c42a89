"""Selecting jobs on the command line: by ids, or by filters."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any
from uuid import UUID

from .. import services
from ..exceptions import InvalidOption
from ..identifiers import as_number, as_uuid, is_uuid
from ..selection import Selection
from ..services.inspect.jobs import find_job_id
from ..services.operations import VERBS, shown_jobs
from ..services.queues import find_queue
from ..text import check_text, shown

FILTERS = ("queue", "state", "key", "tag", "handler", "worker")


def job_id(text: str) -> UUID | int:
    """For argparse: the id or the number of a job."""
    number = as_number(text)
    if number is not None:
        return number
    if not is_uuid(text):
        raise argparse.ArgumentTypeError(f"expected the number or the id of a job, such as 154, got {shown(text)}")
    return as_uuid(text)


def operation_id(text: str) -> UUID:
    """For argparse: the id of an operation."""
    if not is_uuid(text):
        raise argparse.ArgumentTypeError(
            f"expected the id of an operation, got {shown(text)}; jobs operations lists them"
        )
    return as_uuid(text)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """The filters of every subcommand about several jobs."""
    filters = parser.add_argument_group("filters", "If several are given, jobs must satisfy all of them.")
    filters.add_argument("--queue", metavar="NAME", help="jobs of this queue")
    filters.add_argument("--state", metavar="STATE", action="append", help="jobs in this state; may be repeated")
    filters.add_argument("--key", metavar="KEY", help="jobs with this singleton key")
    filters.add_argument(
        "--tag", metavar="TAG", action="append", help="jobs with this tag; if repeated, jobs with all of the tags"
    )
    filters.add_argument("--handler", metavar="NAME", help="jobs for the handler of this name")
    filters.add_argument("--worker", metavar="NAME", help="jobs last assigned to this worker")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Ids or filters."""
    parser.add_argument("ids", metavar="ID", nargs="*", type=job_id, help="the number or the id of a job")
    add_filters(parser)
    parser.add_argument(
        "--limit", metavar="N", type=int, help="at most N of the jobs that the filters find, the oldest first"
    )


def filters_of(options: dict[str, Any], using: str) -> Selection:
    """The selection of the filters. Raises ``QueueNotFound`` and ``InvalidOption``."""
    values = {name: options[name] for name in ("key", "handler", "worker") if options[name] is not None}
    texts: dict[str, Any] = {name: check_text(text, option=name, max_length=255) for name, text in values.items()}
    return Selection(
        queue=None if options["queue"] is None else find_queue(options["queue"], using).name,
        states=options["state"] or None,
        tags=options["tag"] or None,
        **texts,
    )


def selected(verb: str, options: dict[str, Any], using: str) -> Selection:
    """The selected jobs in their present state: jobs that change before the operator confirms are left alone.

    Raises ``InvalidOption`` for both ids and filters, for neither, and for a state that the verb never takes.
    """
    snapshot = services.current_snapshot(using=using)
    filters = [name for name in FILTERS if options[name] not in (None, [])]
    if options["ids"]:
        if filters or options["limit"] is not None:
            raise InvalidOption("ids", f"cannot be given together with --{(filters or ['limit'])[0]}")
        return Selection(ids=tuple(find_job_id(id, using=using) for id in options["ids"]), snapshot=snapshot)
    if not filters:
        hint = "To empty a queue, use purge." if verb == "delete" else ""
        raise InvalidOption("ids", f"{verb} needs ids or filters", hint=hint)
    selection = replace(filters_of(options, using), snapshot=snapshot)
    takes = sorted(str(state) for state in VERBS[verb].takes)
    for state in selection.states or ():
        if state not in takes:
            raise InvalidOption(
                "state", f"{verb} takes no {state} jobs", hint=f"It takes jobs that are {', '.join(takes)}."
            )
    return _oldest(verb, selection, limit_of(options), using)


def _oldest(verb: str, selection: Selection, limit: int | None, using: str) -> Selection:
    """Limit a selection to its oldest jobs, by the sequence number of the last of them."""
    if limit is None:
        return selection
    numbers = list(shown_jobs(verb, selection, using).order_by("seq").values_list("seq", flat=True)[:limit])
    return replace(selection, until_seq=numbers[-1] if numbers else 0)


def limit_of(options: dict[str, Any]) -> int | None:
    """The value of ``--limit``. Raises ``InvalidOption`` if it is less than 1."""
    limit: int | None = options["limit"]
    if limit is not None and limit < 1:
        raise InvalidOption("limit", f"expected 1 or more, got {limit}")
    return limit
