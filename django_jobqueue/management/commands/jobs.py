"""``manage.py jobs``: inspect and change jobs."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.db import DatabaseError, InterfaceError, connections

from ...cli.answers import MEANINGS, Answer, Code, as_json, one_line
from ...cli.output import ProgressOutput
from ...cli.subcommands import SUBCOMMANDS, add_subcommands
from ...connection_names import named as named_connection
from ...database_errors import explanation
from ...exceptions import (
    DuplicateJob,
    InvalidTransition,
    JobNotFound,
    JobQueueError,
    LakeProblem,
    QueueNotFound,
    SparkUnavailable,
)
from ...services.inspect.jobs import job_database

EPILOG = "exit codes:\n" + "\n".join(f"  {code.value:<5}{meaning}" for code, meaning in MEANINGS.items())


class _Formatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks in the list of exit codes."""


class Command(BaseCommand):
    help = "Inspects and changes jobs, queues and schedules."
    requires_system_checks = []  # the command must answer even when a system check fails

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=_Formatter, epilog=EPILOG, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        add_subcommands(parser, _common, formatter_class=_Formatter, epilog=EPILOG)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            answer = self._answer(options)
        except JobQueueError as error:
            self._fail(options, _code(error), error.code, error.message, error.hint, error)
        except (DatabaseError, InterfaceError) as error:
            text = explanation(error, options["database"]) or _first_line(error)
            self._fail(options, Code.DATABASE, "database", text, "", error)
        except ImproperlyConfigured as error:
            self._fail(options, Code.WRONG, "settings", str(error), "", error)
        except KeyboardInterrupt as error:
            self._fail(options, Code.INTERRUPTED, "interrupted", "Interrupted.", str(error), error)
        except CommandError:
            raise
        except Exception as error:  # Python would exit with 1, which means FOUND to scripts
            what = _first_line(error).rstrip(".")
            message = f"Unexpected error: {type(error).__name__}: {what}."
            self._fail(options, Code.UNEXPECTED, "unexpected", message, "Run it again with --traceback.", error)
        self.stdout.write(as_json(answer.document) if options["json"] else answer.text)
        if answer.code:
            sys.exit(answer.code)

    def _answer(self, options: dict[str, Any]) -> Answer:
        using = _database(options["database"])
        subcommand = SUBCOMMANDS[options["subcommand"]]
        more: dict[str, Any] = {}
        if subcommand.confirms:
            more["confirm"] = lambda question: bool(options.get("yes")) or self._confirm(question)
        if subcommand.has_progress:
            more["tell"] = ProgressOutput(self.stderr)
        with named_connection(using, f"jobs {options['subcommand']}"):
            return subcommand.run(options, self.style, using, **more)

    def _confirm(self, question: str) -> bool:
        """Ask for confirmation on a terminal; scripts are not asked."""
        if not sys.stdin.isatty():
            return True
        self.stderr.write(f"{question} [y/N] ", ending="", style_func=lambda text: text)
        self.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def _fail(
        self, options: dict[str, Any], exit_code: Code, code: str, message: str, hint: str, cause: BaseException
    ) -> NoReturn:
        """Fail with one sentence, and with ``--json`` with a document too."""
        if options["json"]:
            self.stdout.write(as_json({"error": {"code": code, "message": message, "hint": hint}}))
        raise CommandError(one_line(f"{message} {hint}"), returncode=exit_code) from cause


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--database", metavar="ALIAS", help="the database of the jobs (default: the one that the router chooses)"
    )
    # Django takes these options before the subcommand; accept them after it too.
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, help=argparse.SUPPRESS, default=argparse.SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS, default=argparse.SUPPRESS)
    parser.add_argument(
        "-v", "--verbosity", type=int, choices=(0, 1, 2, 3), help=argparse.SUPPRESS, default=argparse.SUPPRESS
    )


def _database(alias: str | None) -> str:
    if alias is not None and alias not in connections.databases:
        known = ", ".join(connections.databases)
        raise ImproperlyConfigured(f"There is no database {alias!r} in DATABASES. The aliases are {known}.")
    using = job_database(alias)
    if connections[using].vendor != "postgresql":
        raise ImproperlyConfigured(f"The database {using!r} is not PostgreSQL, so it cannot have jobs.")
    return using


def _code(error: JobQueueError) -> Code:
    if isinstance(error, JobNotFound | QueueNotFound):
        return Code.MISSING
    if isinstance(error, LakeProblem | SparkUnavailable):
        return Code.LAKE
    return Code.FOUND if isinstance(error, InvalidTransition | DuplicateJob) else Code.WRONG


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
