"""Which jobs are meant: by their ids, or by filters."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from ..encoding import check_tags, check_text
from ..engine.queues import check_exists
from ..exceptions import InvalidOption, JobQueueError
from ..identifiers import as_uuid
from ..models import Job
from ..options import check_state
from ..querysets import JobQuerySet
from ..states import JobState

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


def filtered(options: dict[str, Any], using: str) -> JobQuerySet:
    """The jobs that the filters mean. Raises ``QueueNotFound`` and ``InvalidOption``."""
    jobs = Job.objects.using(using).all()
    if options["queue"] is not None:
        jobs = jobs.in_queue(check_exists(options["queue"], using).name)
    if options["state"]:
        jobs = jobs.in_state(*(check_state(state) for state in options["state"]))
    if options["tag"]:
        jobs = jobs.tagged(check_tags(options["tag"]))
    for option, column in (("key", "singleton_key"), ("handler", "name"), ("worker", "assignee")):
        if options[option] is not None:
            jobs = jobs.filter(**{column: check_text(options[option], option=option, max_length=255)})
    return jobs


def selected(verb: str, options: dict[str, Any], allowed: Iterable[JobState], using: str) -> list[UUID]:
    """The ids that are meant; with filters, of jobs in a state that the verb takes.

    Raises ``InvalidOption`` for both ids and filters, for neither, and for a state that the verb never takes.
    """
    given = [name for name in FILTERS if options[name] not in (None, [])]
    if options["ids"]:
        if given or options["limit"] is not None:
            raise InvalidOption("ids", f"cannot be given together with --{(given or ['limit'])[0]}")
        return list(dict.fromkeys(options["ids"]))
    if not given:
        hint = "To empty a queue there is purge." if verb == "delete" else ""
        raise InvalidOption("ids", f"{verb} needs ids or filters", hint=hint)
    jobs = filtered(options, using)
    takes = sorted(str(state) for state in allowed)
    for state in options["state"] or ():
        if check_state(state) not in takes:
            raise InvalidOption("state", f"{verb} takes no {state} jobs", hint=f"It takes {', '.join(takes)}.")
    return list(jobs.in_state(*takes).order_by("seq").values_list("pk", flat=True)[: limit_of(options)])


def limit_of(options: dict[str, Any]) -> int | None:
    """``--limit``, if it is one. Raises ``InvalidOption``."""
    limit: int | None = options["limit"]
    if limit is not None and limit < 1:
        raise InvalidOption("limit", f"expected 1 or more, got {limit}")
    return limit
