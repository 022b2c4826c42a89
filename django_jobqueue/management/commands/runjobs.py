"""``manage.py runjobs``: run a worker."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction
from math import inf
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ... import handlers
from ...conf import get_settings
from ...exceptions import JobQueueError
from ...grouping import Grouping
from ...services.inspect.jobs import job_database
from ...services.workers import leave_pools
from ...text import check_queue_name, check_tags, check_text

MOST_PORT = 65_535
MOST_NAME = 240  # the number of a child is appended to it


class Command(BaseCommand):
    help = (
        "Runs a worker: fetches jobs, runs their handlers, sends the jobs of schedules, recovers lost jobs, cleans up."
    )
    # Not those of URLs: they import the views of the project, which a worker does not need.
    requires_system_checks = ["jobqueue", checks.Tags.models]

    def add_arguments(self, parser: ArgumentParser) -> None:
        known = get_settings()
        add = parser.add_argument
        add("--queue", action="append", default=[], metavar="NAME", help="only jobs of this queue; may be repeated")
        add("--tags", default="", help="only jobs that have all of these tags, separated by commas")
        add(
            "--grouping",
            choices=Grouping.values,
            help="fetch jobs of standard queues by group, each group in its order",
        )
        add("--processes", type=int, help=f"how many child processes (default {known.PROCESSES})")
        add("--concurrency", type=int, help=f"how many handlers each child runs at once (default {known.CONCURRENCY})")
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

    def handle(self, *args: Any, **arguments: Any) -> None:
        if arguments["reload"] is None:
            arguments["reload"] = settings.DEBUG and not arguments["drain"]
        if arguments["reload"]:
            from ...worker.reload import run_with_reload

            handlers.autodiscover()
            sys.exit(run_with_reload())
        leave_pools()
        options = self._options(arguments)
        try:
            sys.exit(self._worker(options).run())
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error

    def _worker(self, options: Any) -> Any:
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

    def _report(self, checked: Any) -> None:
        """Tell what the database says. Raises ``ImproperlyConfigured`` if the worker cannot work at all."""
        for warning in checked.warnings:
            self.stderr.write(self.style.WARNING(warning))
        if checked.refusal:
            raise ImproperlyConfigured(checked.refusal)

    def _options(self, arguments: dict[str, Any]) -> Any:
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
            queues = tuple(check_queue_name(name) for name in arguments["queue"])
            tags = tuple(check_tags([tag.strip() for tag in arguments["tags"].split(",") if tag.strip()]))
        except JobQueueError as error:
            raise CommandError(str(error)) from error
        try:
            using = job_database(arguments["database"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        self._check_handlers()
        return WorkerOptions.build(
            queues=queues,
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
            stop_on_eof=arguments["stop_on_eof"],
        )

    def _check_handlers(self) -> None:
        if not handlers.autodiscover():
            raise CommandError(
                "No handlers were found. Decorate a function with @job(queue=…) in a jobs.py or tasks.py of an "
                f"installed app (modules searched: {', '.join(get_settings().HANDLER_MODULES)})."
            )
