"""The subcommands of ``manage.py jobs``: what each takes, and the function that does it."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from getpass import getuser
from typing import Any

from . import inspect, lake, operate, repair, schedules
from .answers import Answer
from .selection import add_filters, add_selection, job_id

Arguments = Callable[[ArgumentParser], None]


@dataclass(frozen=True, slots=True)
class Subcommand:
    help: str
    run: Callable[..., Answer]
    arguments: Arguments
    asks: bool = False  # gets a function that asks the operator
    tells: bool = False  # gets a function that tells how far it has come


def this_user() -> str:
    """Who is recorded as the operator, unless ``--operator`` says so."""
    try:
        return getuser()
    except (KeyError, OSError):  # a container without names for its users
        return "manage.py"


# --------------------------------------------------------------------------------------------------- what each takes


def _one_job(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=job_id, help="the id of the job")


def _show(parser: ArgumentParser) -> None:
    _one_job(parser)
    parser.add_argument("--data", action="store_true", help="show data and output whole, also what REDACT hides")


def _queue(parser: ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="the name of the queue")


def _maybe_queue(parser: ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="only this queue")


def _limit(default: int) -> Arguments:
    def add(parser: ArgumentParser) -> None:
        parser.add_argument("--limit", metavar="N", type=int, default=default, help=f"at most N (default {default})")

    return add


def _list(parser: ArgumentParser) -> None:
    add_filters(parser)
    _limit(50)(parser)
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--newest", action="store_true", help="newest first (the default)")
    order.add_argument("--oldest", action="store_true", help="oldest first")


def _blocked(parser: ArgumentParser) -> None:
    _maybe_queue(parser)
    _limit(100)(parser)


def _workers(parser: ArgumentParser) -> None:
    _limit(100)(parser)
    parser.add_argument("--all", action="store_true", help="also those that stopped more than a day ago")


def _schedules(parser: ArgumentParser) -> None:
    _maybe_queue(parser)
    parser.add_argument("--next", metavar="N", type=int, default=3, help="show the next N slots (default 3)")


def _send(parser: ArgumentParser) -> None:
    _queue(parser)
    parser.add_argument("data", metavar="DATA", nargs="?", help="its data as JSON; - reads the standard input")
    parser.add_argument("--name", help="the handler that is to do it")
    parser.add_argument("--key", help="its singleton key")
    parser.add_argument("--group", help="its group key")
    parser.add_argument("--priority", type=int, default=0, help="higher goes first (default 0)")
    parser.add_argument("--delay", metavar="TIME", type=operate.seconds, help="start after so long: 90, 5m, 2h, 1d")
    parser.add_argument("--tag", action="append", help="a tag; may be repeated")


def _recorded(parser: ArgumentParser) -> None:
    parser.add_argument("--operator", metavar="NAME", default=this_user(), help="who is recorded (default: you)")


def _pausing(parser: ArgumentParser) -> None:
    _queue(parser)
    parser.add_argument("--reason", metavar="WHY", help="is recorded")
    _recorded(parser)


def _operator(parser: ArgumentParser) -> None:
    _recorded(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen")


def _destroying(parser: ArgumentParser) -> None:
    _operator(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask, also on a terminal")


def _retry(parser: ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--reason", metavar="WHY", help="is recorded")
    _operator(parser)


def _skip(parser: ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--reason", metavar="WHY", required=True, help="is kept with the job")
    _destroying(parser)


def _cancel(parser: ArgumentParser) -> None:
    add_selection(parser)
    force = "stop a running job at once: its handler and the next job of its key may overlap"
    parser.add_argument("--force", action="store_true", help=force)
    _destroying(parser)


def _delete(parser: ArgumentParser) -> None:
    add_selection(parser)
    _destroying(parser)


def _purge(parser: ArgumentParser) -> None:
    _queue(parser)
    parser.add_argument("--state", metavar="STATE", help="only jobs in this state")
    _destroying(parser)


def _one_operation(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=job_id, help="the id of the operation")


def _maintain(parser: ArgumentParser) -> None:
    once = "one pass, for those who prefer cron; workers do it by themselves"
    parser.add_argument("--once", action="store_true", required=True, help=once)


def _doctor(parser: ArgumentParser) -> None:
    parser.add_argument("--fix", action="store_true", help="mend what can be mended without a person's judgement")
    lake_help = "also start Spark and test the lake at PATH (default: JOBQUEUE['LAKE'])"
    parser.add_argument("--lake", metavar="PATH", nargs="?", const=True, help=lake_help)
    parser.add_argument("--master", metavar="URL", help="Spark's master, for --lake (default local[*,4])")


SUBCOMMANDS: dict[str, Subcommand] = {
    "list": Subcommand("list jobs", inspect.list_jobs, _list),
    "show": Subcommand("everything about a job", inspect.show, _show),
    "why": Subcommand("why a job is not running, in a sentence", inspect.why, _one_job),
    "blocked": Subcommand("keys that wait for a person", inspect.blocked, _blocked),
    "stats": Subcommand("jobs per queue and state", inspect.stats, _maybe_queue),
    "workers": Subcommand("who works, and who is gone", inspect.workers, _workers),
    "operations": Subcommand("what operators did to jobs, and how far it got", inspect.operations, _limit(20)),
    "schedules": Subcommand("schedules and their next slots", schedules.schedules, _schedules),
    "send": Subcommand("store a job", operate.send, _send),
    "retry": Subcommand("give dead jobs another attempt", operate.retry, _retry, asks=True),
    "skip": Subcommand("end dead jobs, so that their keys go on", operate.skip, _skip, asks=True),
    "cancel": Subcommand("cancel jobs that wait or run", operate.cancel, _cancel, asks=True),
    "delete": Subcommand("delete finished jobs", operate.delete, _delete, asks=True),
    "purge": Subcommand("delete jobs of a queue, whatever they are doing", operate.purge, _purge, asks=True),
    "resume_operation": Subcommand("continue an operation that was stopped", operate.resume_operation, _one_operation),
    "pause": Subcommand("hand out no more jobs of a queue", operate.pause, _pausing),
    "resume": Subcommand("hand out jobs of a queue again", operate.resume, _pausing),
    "maintain": Subcommand("expire, recover, clean up: one pass", operate.maintain, _maintain),
    "archive": Subcommand("finished jobs into the lake", lake.archive, lake.archive_arguments, asks=True, tells=True),
    "restore": Subcommand("send archived jobs again", lake.restore, lake.restore_arguments, asks=True, tells=True),
    "bulk_send": Subcommand("a job for each row of files", lake.bulk_send, lake.bulk_arguments, asks=True, tells=True),
    "analyze": Subcommand("figures of the past, as a page", lake.analyze, lake.analyze_arguments, tells=True),
    "audit": Subcommand("prove that keys kept their order", lake.audit, lake.audit_arguments, tells=True),
    "doctor": Subcommand("find what is wrong, and mend it", repair.doctor, _doctor),
}


def add_subcommands(parser: ArgumentParser, common: Arguments, **kwargs: Any) -> None:
    """A parser for each, with what they have in common."""
    added = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    for name, subcommand in SUBCOMMANDS.items():
        sentence = f"{subcommand.help[0].upper()}{subcommand.help[1:]}."
        one = added.add_parser(name, help=subcommand.help, description=sentence, **kwargs)
        subcommand.arguments(one)
        common(one)
