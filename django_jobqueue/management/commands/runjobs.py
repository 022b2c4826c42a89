"""``manage.py runjobs``: run a worker."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from ... import handlers
from ...conf import get_settings
from ...database_errors import explanation
from ...exceptions import JobQueueError
from ...grouping import Grouping
from ...queue_order import QueueOrder
from ...services.inspect.jobs import job_database
from ...services.queues import queue_names
from ...services.workers import leave_pools
from ...text import check_queue_name, check_tags, check_text

if TYPE_CHECKING:
    from ...worker.options import WorkerOptions

MOST_PORT = 65_535
MOST_CONCURRENCY = 1_000
MOST_NAME = 240  # the number of a child is appended to it


class Command(BaseCommand):
    help = (
        "Runs a worker: fetches jobs, runs their handlers, sends the jobs of schedules, recovers lost jobs, cleans up."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        known = get_settings()
        add = parser.add_argument
        add(
            "--queue",
            action="append",
            default=[],
            metavar="NAME[=N]",
            help="only jobs of this queue, with =N at most so many at once in each child; may be repeated "
            "(default: all declared queues without the dead-letter queues)",
        )
        add("--exclude-queue", action="append", default=[], metavar="NAME", help="no jobs of this queue")
        add(
            "--queue-order",
            choices=[order.value for order in QueueOrder],
            default=QueueOrder.FAIR.value,
            help="from which queue jobs are claimed next: each in turn (the default), in the order given, or in "
            "proportion to the numbers given",
        )
        add("--tags", default="", help="only jobs that have all of these tags, separated by commas")
        add(
            "--grouping",
            choices=Grouping.values,
            help="fetch jobs of standard queues by group, each group in its order",
        )
        add("--processes", type=int, help=f"how many child processes (default {known.PROCESSES})")
        concurrency = (
            f"how many handlers each child runs at once, of all queues (default {known.CONCURRENCY}, besides those of "
            "queues with a number)"
        )
        add("--concurrency", type=int, help=concurrency)
        grace = f"how many seconds handlers may keep running after a stop (default {known.STOP_GRACE_SECONDS})"
        add("--grace", type=float, help=grace)
        add("--max-jobs", type=int, default=0, help="replace a child after this many jobs (default 0: never)")
        add("--drain", action="store_true", help="process all waiting jobs, then exit")
        add("--no-schedules", action="store_true", help="do not send the jobs of schedules")
        add("--name", help="the name of the worker (default: host and process id)")
        add("--database", help="alias of the jobs' database (default: the one that the router chooses)")
        add("--health-port", type=int, default=0, help="serve /healthz, /readyz and /metrics on this port")
        add("--reload", action=BooleanOptionalAction, help="restart when the code changes (default: if DEBUG)")

    def handle(self, *args: Any, **arguments: Any) -> None:
        if arguments["reload"] is None:
            arguments["reload"] = settings.DEBUG and not arguments["drain"]
        if arguments["reload"]:
            from ...worker.reload import run_with_reload

            handlers.autodiscover()
            sys.exit(run_with_reload())
        leave_pools()
        options = self._options(arguments)
        from ...worker import console, progress
        from ...worker.supervisor import Supervisor

        console.show_log(options)
        if options.verbosity:
            self.stdout.write(console.banner(options))
            self.stdout.flush()

        try:
            supervisor = Supervisor(options)
        except OSError as error:
            raise CommandError(f"--health-port {options.health_port} cannot be opened: {error.strerror}.") from error
        code = supervisor.run()
        if options.drain:
            summary = progress.end_drain(options, supervisor.tally(), supervisor.seconds())
            if options.verbosity:
                self.stdout.write(summary)
        sys.exit(code)

    def _options(self, arguments: dict[str, Any]) -> WorkerOptions:
        from ...worker.options import WorkerOptions

        for name, least in (("processes", 1), ("concurrency", 1), ("grace", 0), ("max_jobs", 0), ("health_port", 0)):
            if arguments[name] is not None and not least <= arguments[name] < inf:  # NaN is neither
                raise CommandError(
                    f"--{name.replace('_', '-')} must be a number of at least {least}, not {arguments[name]}."
                )
        if arguments["health_port"] > MOST_PORT:
            raise CommandError(f"--health-port must be at most {MOST_PORT}, not {arguments['health_port']}.")
        if arguments["database"] is not None and arguments["database"] not in connections:
            known = ", ".join(connections)
            raise CommandError(f"--database {arguments['database']!r} is not in DATABASES; the aliases are {known}.")
        try:
            if arguments["name"] is not None:
                check_text(arguments["name"], option="--name", max_length=MOST_NAME, required=True)
            queues, own = self._queues(arguments["queue"])
            exclude = tuple(check_queue_name(name) for name in arguments["exclude_queue"])
            tags = tuple(check_tags([tag.strip() for tag in arguments["tags"].split(",") if tag.strip()]))
        except JobQueueError as error:
            raise CommandError(str(error)) from error
        try:
            using = job_database(arguments["database"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        queues = tuple(queue for queue in queues if queue not in exclude)
        if arguments["queue"] and not queues:
            raise CommandError("--exclude-queue leaves none of the queues that --queue names.")
        options = WorkerOptions.build(
            queues=queues,
            own={name: number for name, number in own.items() if name not in exclude},
            exclude=exclude,
            queue_order=QueueOrder(arguments["queue_order"]),
            tags=tags,
            grouping=arguments["grouping"],
            processes=arguments["processes"],
            concurrency=arguments["concurrency"],
            grace=arguments["grace"],
            max_jobs=arguments["max_jobs"],
            drain=arguments["drain"],
            schedules=not arguments["no_schedules"],
            name=arguments["name"],
            using=using,
            health_port=arguments["health_port"],
            verbosity=arguments["verbosity"],
        )
        if problem := options.problem():
            raise CommandError(f"--concurrency {problem}.")
        self._check(options)
        return options

    def _queues(self, given: list[str]) -> tuple[tuple[str, ...], dict[str, int]]:
        """The queues of ``--queue``, and the numbers that follow some. The name of a queue has no ``=``."""
        own: dict[str, int] = {}
        names: dict[str, None] = {}
        for text in given:
            name, separator, number = text.partition("=")
            check_queue_name(name)
            if name in names and str(own.get(name, "")) != number:
                raise CommandError(f"--queue names {name!r} twice, with another number.")
            names[name] = None
            if separator:
                if not (number.isascii() and number.isdigit() and 0 < int(number) <= MOST_CONCURRENCY):
                    raise CommandError(
                        f"--queue {text}: expected a number from 1 to {MOST_CONCURRENCY} after =, got {number!r}."
                    )
                own[name] = int(number)
        return tuple(names), own

    def _check(self, options: WorkerOptions) -> None:
        """Refuse to start a worker without handlers, and warn about queues that do not exist or are left out."""
        from ...worker.served_queues import queues_of_workers

        discovered = handlers.autodiscover()
        if not discovered:
            raise CommandError(
                "No handlers were found. Decorate a function with @job(queue=…) in a jobs.py or tasks.py of an "
                f"installed app (modules searched: {', '.join(get_settings().HANDLER_MODULES)})."
            )
        using = options.using
        try:
            existing = queue_names(using=using)
            served = options.queues or queues_of_workers(using=using)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        except (OperationalError, InterfaceError) as error:
            text = f"The database does not answer; waiting for it. {explanation(error, using) or error}"
            self._warn(text.strip())
            return
        except DatabaseError as error:
            raise CommandError(explanation(error, using) or str(error).strip()) from error
        with_handlers = handlers.served(discovered)
        for name in options.queues or sorted(with_handlers - set(options.exclude)):
            if name not in existing:
                text = f"The queue {name!r} does not exist yet; the worker waits until it does.{_guess(name, existing)}"
                self._warn(text)
            elif name not in served:
                self._warn(
                    f"The queue {name!r} keeps dead letters and is not served, although a handler is declared for it; "
                    f"to serve it, give --queue {name}."
                )
        for name in options.exclude:
            if name not in existing:
                self._warn(f"--exclude-queue {name}: there is no such queue.{_guess(name, existing)}")

    def _warn(self, text: str) -> None:
        self.stderr.write(self.style.WARNING(text))


def _guess(name: str, existing: Iterable[str]) -> str:
    close = get_close_matches(name, existing, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
