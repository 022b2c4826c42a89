"""What ``runjobs`` writes for people: its banner, and the log if the project has not configured one."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections import defaultdict

import django
from django.db import connections

from .. import __version__, handlers
from ..conf import get_settings
from .options import WorkerOptions
from .progress import Progress

MOST_HANDLERS = 8  # of a queue, in the banner
LOGGER = "django_jobqueue"
_LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.INFO, 3: logging.DEBUG}
_CLEAR_LINE = "\r\x1b[K"  # a progress bar may be there


def show_log(options: WorkerOptions) -> None:
    """Write the log of this process to the standard error, unless the project has configured where it goes."""
    if is_configured():
        return
    logger, level = logging.getLogger(LOGGER), _LEVELS[options.verbosity]
    handler = logging.StreamHandler(sys.stderr)
    clear = _CLEAR_LINE if Progress.is_wanted(options) else ""
    handler.setFormatter(logging.Formatter(f"{clear}%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S"))
    handler.setLevel(level)
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(level)


def is_configured() -> bool:
    """Whether the project has a logging handler for the log of a worker, or for a part of it."""
    logger = logging.getLogger(LOGGER)
    below = [each for name, each in logger.manager.loggerDict.items() if name.startswith(f"{LOGGER}.")]
    return logger.hasHandlers() or any(isinstance(each, logging.Logger) and each.handlers for each in below)


def banner(options: WorkerOptions) -> str:
    """What this worker is and serves, and how to stop it."""
    rows = [
        ("database", _database(options.using)),
        ("processes", _processes(options)),
        *((("queues", text) if first else ("", text)) for first, text in _queues(options)),
    ]
    if options.tags:
        rows.append(("tags", ", ".join(options.tags)))
    if options.verbosity and not logging.getLogger(f"{LOGGER}.worker").isEnabledFor(logging.INFO):
        rows.append(("log", f"as in LOGGING; to see each job, give the logger {LOGGER} the level INFO"))
    rows.append(("to stop", _stopping(options)))
    versions = f"Django {django.get_version()}, Python {platform.python_version()}"
    lines = [f"django_jobqueue {__version__} ({versions}): worker {options.name}"]
    return "\n".join([*lines, *(f"  {label:<10} {text}" for label, text in rows)])


def _database(alias: str) -> str:
    """The database as the settings name it, or the variables from which libpq takes what they leave out."""
    known = connections[alias].settings_dict
    if not known.get("HOST") and (service := known["OPTIONS"].get("service") or os.environ.get("PGSERVICE")):
        place = f"the service {service}"
    else:
        host = known.get("HOST") or os.environ.get("PGHOST") or "a local socket"
        port = known.get("PORT") or os.environ.get("PGPORT")
        place = f"{host}:{port}" if port else str(host)
    return f"{alias}: {known['NAME']} on {place}" if known.get("NAME") else alias


def _processes(options: WorkerOptions) -> str:
    text = f"{options.processes} x {_plural(options.concurrency, 'thread')}"
    if any(handler.is_async for handler in handlers.all_handlers()):
        text += f" and {_plural(get_settings().ASYNC_CONCURRENCY, 'async handler')}"
    return text


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _queues(options: WorkerOptions) -> list[tuple[bool, str]]:
    """A line for each queue with its handlers, and whether it is the first."""
    names: dict[str, list[str]] = defaultdict(list)
    for handler in handlers.all_handlers():
        for queue in handler.queues:
            names[queue].append(handler.name)
    lines = []
    for queue in options.served_queues():
        known = sorted(names[queue])
        shown = ", ".join(known[:MOST_HANDLERS]) or "no handler of its own"
        more = f" and {len(known) - MOST_HANDLERS} more" if len(known) > MOST_HANDLERS else ""
        lines.append(f"{queue}: {shown}{more}")
    return [(place == 0, line) for place, line in enumerate(lines)]


def _stopping(options: WorkerOptions) -> str:
    if options.drain:
        return "exits when all waiting jobs are processed; Ctrl-C stops it earlier"
    return f"Ctrl-C or SIGTERM; running jobs then have {options.grace:g} s to end; a second time: at once"
