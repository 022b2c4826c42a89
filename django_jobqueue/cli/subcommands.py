"""The subcommands of ``manage.py jobs``: the arguments of each, and the function that runs it."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from getpass import getuser
from typing import Any

from . import alerts, inspect, lake, operate, repair, schedules
from .answers import Answer
from .selection import add_filters, add_selection, job_id, operation_id

Arguments = Callable[[ArgumentParser], None]


@dataclass(frozen=True, slots=True)
class Subcommand:
    help: str
    run: Callable[..., Answer]
    arguments: Arguments
    confirms: bool = False  # gets a function that asks the operator for confirmation
    has_progress: bool = False  # gets a function that writes its progress


def this_user() -> str:
    """The operator that is recorded unless ``--operator`` is given."""
    try:
        return getuser()
    except (KeyError, OSError):  # a container without names for its users
        return "manage.py"


# --------------------------------------------------------------------------------------------------------- arguments


def _one_job(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=job_id, help="the number or the id of the job")


def _show(parser: ArgumentParser) -> None:
    _one_job(parser)
    parser.add_argument(
        "--data", action="store_true", help="show all data and output, including values that REDACT hides"
    )


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
    parser.add_argument("--name", help="the handler of the job")
    parser.add_argument("--key", help="its singleton key")
    parser.add_argument("--group", help="its group key")
    parser.add_argument("--priority", type=int, default=0, help="jobs with a higher priority run first (default 0)")
    parser.add_argument("--delay", metavar="TIME", type=operate.seconds, help="delay its start: 90, 5m, 2h, 1d")
    parser.add_argument("--tag", action="append", help="a tag; may be repeated")


def _recorded(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--operator", metavar="NAME", default=this_user(), help="the operator to record (default: your login name)"
    )


def _reason(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="WHY", help="the reason to record")


def _pausing(parser: ArgumentParser) -> None:
    _queue(parser)
    _reason(parser)
    _recorded(parser)


def _operator(parser: ArgumentParser) -> None:
    _recorded(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show what would happen")


def _destroying(parser: ArgumentParser) -> None:
    _operator(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _retry(parser: ArgumentParser) -> None:
    add_selection(parser)
    _reason(parser)
    _operator(parser)


def _skip(parser: ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--reason", metavar="WHY", required=True, help="the reason, which is kept with each job")
    _destroying(parser)


def _cancel(parser: ArgumentParser) -> None:
    add_selection(parser)
    force = "stop a running job at once: its handler and the next job of its key may overlap"
    parser.add_argument("--force", action="store_true", help=force)
    _reason(parser)
    _destroying(parser)


def _delete(parser: ArgumentParser) -> None:
    add_selection(parser)
    _reason(parser)
    _destroying(parser)


def _redrive(parser: ArgumentParser) -> None:
    parser.add_argument("queue", metavar="DEAD_LETTER_QUEUE", help="the queue that keeps the dead letters")
    parser.add_argument("--to", metavar="QUEUE", help="send new jobs to this queue instead of the one they came from")
    parser.add_argument("--source-queue", metavar="QUEUE", help="only dead letters of this queue")
    parser.add_argument("--limit", metavar="N", type=int, help="at most N, the oldest first")
    parser.add_argument("--reason", metavar="WHY", help="the reason to record")
    _destroying(parser)


def _purge(parser: ArgumentParser) -> None:
    _queue(parser)
    parser.add_argument("--state", metavar="STATE", help="only jobs in this state")
    _reason(parser)
    _destroying(parser)


def _alerts(parser: ArgumentParser) -> None:
    _limit(50)(parser)
    parser.add_argument("--test", action="store_true", help="send a test message, to try JOBQUEUE['ALERTS']")


def _one_operation(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=operation_id, help="the id of the operation")
    _reason(parser)
    _recorded(parser)


def _maintain(parser: ArgumentParser) -> None:
    once = "run one pass, for example from cron; workers also do this by themselves"
    parser.add_argument("--once", action="store_true", required=True, help=once)


def _doctor(parser: ArgumentParser) -> None:
    parser.add_argument("--fix", action="store_true", help="repair what can be repaired without a decision")
    lake_help = "also start Spark and test the lake at PATH (default: JOBQUEUE['LAKE'])"
    parser.add_argument("--lake", metavar="PATH", nargs="?", const=True, help=lake_help)
    parser.add_argument("--master", metavar="URL", help="Spark's master, for --lake (default local[*,4])")


SUBCOMMANDS: dict[str, Subcommand] = {
    "list": Subcommand("list jobs", inspect.list_jobs, _list),
    "show": Subcommand("show everything about a job", inspect.show, _show),
    "why": Subcommand("explain in a sentence why a job is not running", inspect.why, _one_job),
    "blocked": Subcommand("list blocked keys, which wait for an operator", inspect.blocked, _blocked),
    "stats": Subcommand("count jobs per queue and state", inspect.stats, _maybe_queue),
    "workers": Subcommand("list workers: alive, stopping, silent and stopped", inspect.workers, _workers),
    "operations": Subcommand("list the operations of operators and their progress", inspect.operations, _limit(20)),
    "schedules": Subcommand("list schedules and their next slots", schedules.schedules, _schedules),
    "send": Subcommand("store a job", operate.send, _send),
    "retry": Subcommand("give jobs that failed for good another attempt", operate.retry, _retry, confirms=True),
    "skip": Subcommand(
        "end jobs that failed for good, so that their keys continue", operate.skip, _skip, confirms=True
    ),
    "cancel": Subcommand("cancel waiting and running jobs", operate.cancel, _cancel, confirms=True),
    "delete": Subcommand("delete finished jobs", operate.delete, _delete, confirms=True),
    "redrive": Subcommand(
        "send dead letters back to the queues they came from", operate.redrive, _redrive, confirms=True
    ),
    "purge": Subcommand("delete all jobs of a queue, also running ones", operate.purge, _purge, confirms=True),
    "resume_operation": Subcommand("continue an operation that was stopped", operate.resume_operation, _one_operation),
    "pause": Subcommand("stop fetching jobs of a queue", operate.pause, _pausing),
    "resume": Subcommand("fetch jobs of a queue again", operate.resume, _pausing),
    "maintain": Subcommand("run one pass of maintenance: expire, recover, clean up", operate.maintain, _maintain),
    "archive": Subcommand(
        "move finished jobs to the lake", lake.archive, lake.archive_arguments, confirms=True, has_progress=True
    ),
    "restore": Subcommand(
        "send archived jobs again", lake.restore, lake.restore_arguments, confirms=True, has_progress=True
    ),
    "bulk_send": Subcommand(
        "send a job for each row of files", lake.bulk_send, lake.bulk_arguments, confirms=True, has_progress=True
    ),
    "analyze": Subcommand(
        "write statistics of past jobs to an HTML page", lake.analyze, lake.analyze_arguments, has_progress=True
    ),
    "audit": Subcommand("check that every key kept its order", lake.audit, lake.audit_arguments, has_progress=True),
    "alerts": Subcommand("list problems, and what operators were told of them", alerts.alerts, _alerts),
    "doctor": Subcommand("find problems, and repair them with --fix", repair.doctor, _doctor),
}


def add_subcommands(parser: ArgumentParser, common: Arguments, **kwargs: Any) -> None:
    """Add a parser for each subcommand, with the common arguments."""
    added = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
    for name, subcommand in SUBCOMMANDS.items():
        sentence = f"{subcommand.help[0].upper()}{subcommand.help[1:]}."
        subparser = added.add_parser(name, help=subcommand.help, description=sentence, **kwargs)
        subcommand.arguments(subparser)
        common(subparser)
