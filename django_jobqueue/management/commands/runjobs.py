"""``manage.py runjobs``: a worker."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction
from difflib import get_close_matches
from math import inf
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connections

from ... import handlers
from ...conf import get_settings
from ...exceptions import JobQueueError
from ...grouping import Grouping
from ...services.inspect.jobs import job_database
from ...services.queues import queue_names
from ...services.workers import leave_pools
from ...text import check_queue_name, check_tags, check_text

MOST_PORT = 65_535
MOST_NAME = 240  # the number of the child is added to it


class Command(BaseCommand):
    help = "Fetches jobs and runs their handlers, recovers what crashed workers left, keeps schedules and cleans up."

    def add_arguments(self, parser: ArgumentParser) -> None:
        known = get_settings()
        add = parser.add_argument
        add("--queue", action="append", default=[], metavar="NAME", help="only this queue; may be repeated")
        add("--tags", default="", help="only jobs that carry all of these tags, separated by commas")
        add("--grouping", choices=Grouping.values, help="read standard queues by group, each group in its order")
        add("--processes", type=int, help=f"child processes ({known.PROCESSES})")
        add("--concurrency", type=int, help=f"handlers at once in each child ({known.CONCURRENCY})")
        add("--grace", type=float, help=f"seconds handlers may go on when told to stop ({known.STOP_GRACE_SECONDS})")
        add("--max-jobs", type=int, default=0, help="replace a child after that many jobs")
        add("--drain", action="store_true", help="work off what is there, and leave")
        add("--no-schedules", action="store_true", help="send no jobs of schedules")
        add("--name", help="the worker's name (host and process id)")
        add("--database", help="alias of the database")
        add("--health-port", type=int, default=0, help="answer /healthz, /readyz and /metrics on this port")
        add("--reload", action=BooleanOptionalAction, help="start anew when the code changes (if DEBUG)")

    def handle(self, *args: Any, **given: Any) -> None:
        if given["reload"] is None:
            given["reload"] = settings.DEBUG and not given["drain"]
        if given["reload"]:
            from ...worker.reload import run_with_reload

            handlers.autodiscover()
            sys.exit(run_with_reload())
        leave_pools()
        options = self._options(given)
        from ...worker.supervisor import Supervisor

        try:
            supervisor = Supervisor(options)
        except OSError as error:
            raise CommandError(f"--health-port {options.health_port} cannot be opened: {error.strerror}.") from error
        sys.exit(supervisor.run())

    def _options(self, given: dict[str, Any]) -> Any:
        from ...worker.options import WorkerOptions

        for name, least in (("processes", 1), ("concurrency", 1), ("grace", 0), ("max_jobs", 0), ("health_port", 0)):
            if given[name] is not None and not least <= given[name] < inf:  # NaN is neither
                raise CommandError(f"--{name.replace('_', '-')} must be a number from {least} on, not {given[name]}.")
        if given["health_port"] > MOST_PORT:
            raise CommandError(f"--health-port must be at most {MOST_PORT}, not {given['health_port']}.")
        if given["database"] is not None and given["database"] not in connections:
            known = ", ".join(connections)
            raise CommandError(f"--database {given['database']!r} is not in DATABASES; known are {known}.")
        try:
            if given["name"] is not None:
                check_text(given["name"], option="--name", max_length=MOST_NAME, required=True)
            queues = tuple(check_queue_name(name) for name in given["queue"])
            tags = tuple(check_tags([tag.strip() for tag in given["tags"].split(",") if tag.strip()]))
        except JobQueueError as error:
            raise CommandError(str(error)) from error
        try:
            using = job_database(given["database"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        self._check(queues, using)
        return WorkerOptions.build(
            queues=queues,
            tags=tags,
            grouping=given["grouping"],
            processes=given["processes"],
            concurrency=given["concurrency"],
            grace=given["grace"],
            max_jobs=given["max_jobs"],
            drain=given["drain"],
            schedules=not given["no_schedules"],
            name=given["name"],
            using=using,
            health_port=given["health_port"],
        )

    def _check(self, queues: tuple[str, ...], using: str) -> None:
        """Whoever starts a worker that could do nothing should be told at once."""
        found = handlers.autodiscover()
        if not found:
            raise CommandError(
                "No handlers were found. Decorate a function with @job(queue=…) in a jobs.py or tasks.py of an "
                f"installed app (looked for: {', '.join(get_settings().HANDLER_MODULES)})."
            )
        try:
            there = queue_names(using=using)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        except OperationalError as error:
            self.stderr.write(self.style.WARNING(f"The database does not answer; waiting for it. {error}".strip()))
            return
        wanted = queues or sorted(handlers.served(found))
        for name in wanted:
            if name not in there:
                close = get_close_matches(name, there, n=1)
                guess = f" Did you mean {close[0]!r}?" if close else ""
                text = f"The queue {name!r} does not exist yet; it is waited for.{guess}"
                self.stderr.write(self.style.WARNING(text))
