"""``manage.py jobs``: look at jobs, and decide about them."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.db import DatabaseError, InterfaceError, ProgrammingError, connections

from ...cli.answers import MEANINGS, Answer, Code, as_json, one_line
from ...cli.output import Telling
from ...cli.subcommands import SUBCOMMANDS, add_subcommands
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
    """The list of exit codes keeps its lines."""


class Command(BaseCommand):
    help = "Look at jobs, and decide about them."
    requires_system_checks = []  # whoever calls at three in the morning wants an answer whatever the checks say

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=_Formatter, epilog=EPILOG, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        add_subcommands(parser, _common, formatter_class=_Formatter, epilog=EPILOG)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            answer = self._answer(options)
        except JobQueueError as error:
            self._fail(options, _code(error), error.code, error.message, error.hint, error)
        except ImproperlyConfigured as error:
            self._fail(options, Code.WRONG, "settings", str(error), "", error)
        except ProgrammingError as error:
            self._fail(options, Code.DATABASE, "database", _first_line(error), "Has manage.py migrate run?", error)
        except (DatabaseError, InterfaceError) as error:
            self._fail(options, Code.DATABASE, "database", _first_line(error), "", error)
        except KeyboardInterrupt as error:
            self._fail(options, Code.INTERRUPTED, "interrupted", "Interrupted.", str(error), error)
        except CommandError:
            raise
        except Exception as error:  # Python would end with 1, which scripts take for something that was found
            message = f"Unexpected error: {type(error).__name__}: {_first_line(error)}"
            self._fail(options, Code.UNEXPECTED, "unexpected", message, "--traceback shows where.", error)
        self.stdout.write(as_json(answer.document) if options["json"] else answer.text)
        if answer.code:
            sys.exit(answer.code)

    def _answer(self, options: dict[str, Any]) -> Answer:
        using = _database(options["database"])
        subcommand = SUBCOMMANDS[options["subcommand"]]
        more: dict[str, Any] = {}
        if subcommand.asks:
            more["confirm"] = lambda question: bool(options.get("yes")) or self._confirm(question)
        if subcommand.tells:
            more["tell"] = Telling(self.stderr)
        return subcommand.run(options, self.style, using, **more)

    def _confirm(self, question: str) -> bool:
        """Ask whoever sits there; a script is not asked, because it has said what it wants."""
        if not sys.stdin.isatty():
            return True
        self.stderr.write(f"{question} [y/N] ", ending="", style_func=lambda text: text)
        self.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def _fail(
        self, options: dict[str, Any], exit_code: Code, code: str, message: str, hint: str, cause: BaseException
    ) -> NoReturn:
        """One sentence for people, and for machines the document they expect."""
        if options["json"]:
            self.stdout.write(as_json({"error": {"code": code, "message": message, "hint": hint}}))
        raise CommandError(one_line(f"{message} {hint}"), returncode=exit_code) from cause


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--database", metavar="ALIAS", help="the database of the jobs (default: as the router says)")
    # What Django takes before the subcommand, people type behind it.
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
        raise ImproperlyConfigured(f"There is no database {alias!r} in DATABASES. Known are {known}.")
    using = job_database(alias)
    if connections[using].vendor != "postgresql":
        raise ImproperlyConfigured(f"The database {using!r} is not PostgreSQL, so it has no jobs.")
    return using


def _code(error: JobQueueError) -> Code:
    if isinstance(error, JobNotFound | QueueNotFound):
        return Code.MISSING
    if isinstance(error, LakeProblem | SparkUnavailable):
        return Code.LAKE
    return Code.FOUND if isinstance(error, InvalidTransition | DuplicateJob) else Code.WRONG


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
