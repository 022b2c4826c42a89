"""``manage.py runjobs``: run a worker."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction
from math import inf
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ... import handlers
from ...conf import get_settings, valid_settings
from ...exceptions import JobQueueError
from ...grouping import Grouping
from ...queue_order import QueueOrder
from ...services.inspect.jobs import job_database
from ...services.workers import leave_pools
from ...text import check_queue_name, check_tags, check_text

if TYPE_CHECKING:
    from ...worker.messages import DatabaseChecked
    from ...worker.options import WorkerOptions
    from ...worker.single_process import SingleProcess
    from ...worker.supervisor import Supervisor

MOST_PORT = 65_535
MOST_CONCURRENCY = 1_000
MOST_NAME = 240  # the number of a child is appended to it


class Command(BaseCommand):
    help = (
        "Runs a worker: fetches jobs, runs their handlers, sends the jobs of schedules, recovers lost jobs, cleans up."
    )
    # Not those of URLs: they import the views of the project, which a worker does not need.
    requires_system_checks = ["jobqueue", checks.Tags.models]

    def add_arguments(self, parser: ArgumentParser) -> None:
        known = valid_settings()  # system checks tell what is wrong with the others
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
        add("--stop-on-eof", action="store_true", help="stop at once when the standard input ends")
        add("--reload", action=BooleanOptionalAction, help="restart when the code changes (default: if DEBUG)")

    def check(self, *args: Any, **options: Any) -> None:
        """Run the system checks without databases: Django 6.1 passes all, but the supervisor must not connect."""
        super().check(*args, **{**options, "databases": []})

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

        console.show_log(options)
        try:
            worker = self._worker(options)
            if options.verbosity:
                self.stdout.write(console.banner(options))
                self.stdout.flush()
            code = worker.run()
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if options.drain:
            summary = progress.end_drain(options, worker.tally(), worker.seconds())
            if options.verbosity:
                self.stdout.write(summary)
        sys.exit(code)

    def _worker(self, options: WorkerOptions) -> Supervisor | SingleProcess:
        from ...worker.single_process import SingleProcess
        from ...worker.start_check import check_database
        from ...worker.start_methods import StartMethod, start_method

        method = start_method()
        checked = None
        # The supervisor does not connect, because it forks. A script that calls this command may be connected already.
        if method == StartMethod.THREAD or connections[options.using].connection is not None:
            checked = check_database(options)
            self._report(checked)
        try:
            if method == StartMethod.THREAD:
                return SingleProcess(options)
            from ...worker.supervisor import Supervisor

            return Supervisor(options, method, report=self._report, is_checked=checked is not None)
        except OSError as error:
            raise CommandError(f"--health-port {options.health_port} cannot be opened: {error.strerror}.") from error

    def _report(self, checked: DatabaseChecked) -> None:
        """Tell what the database says. Raises ``ImproperlyConfigured`` if the worker cannot work at all."""
        for warning in checked.warnings:
            self.stderr.write(self.style.WARNING(warning))
        if checked.refusal:
            raise ImproperlyConfigured(checked.refusal)

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
        self._check_handlers()
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
            stop_on_eof=arguments["stop_on_eof"],
        )
        if problem := options.problem():
            raise CommandError(f"--concurrency {problem}.")
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

    def _check_handlers(self) -> None:
        if not handlers.autodiscover():
            raise CommandError(
                "No handlers were found. Decorate a function with @job(queue=…) in a jobs.py or tasks.py of an "
                f"installed app (modules searched: {', '.join(get_settings().HANDLER_MODULES)})."
            )
