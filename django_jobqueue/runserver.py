"""A worker beside ``manage.py runserver``, while a project is developed."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys

from django.utils.autoreload import DJANGO_AUTORELOAD_ENV, get_child_arguments

from .handlers import autodiscover

COMMAND = "runserver"
STOP_SECONDS = 5.0  # the worker stops at once; one that does not is killed


def is_serving() -> bool:
    """Whether this process is the one of ``runserver`` that serves, not the one that watches the files."""
    if sys.argv[1:2] != [COMMAND]:
        return False
    return os.environ.get(DJANGO_AUTORELOAD_ENV) == "true" or "--noreload" in sys.argv


def start_worker() -> None:
    """Start ``runjobs`` in another process. It ends with this process, however this process ends."""
    autodiscover()  # so that runserver watches the files of the handlers, too
    arguments = get_child_arguments()
    worker = subprocess.Popen(
        [*arguments[: arguments.index(COMMAND)], "runjobs", "--no-reload", "--stop-on-eof"],
        stdin=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != DJANGO_AUTORELOAD_ENV},
        # Ctrl-C reaches all processes of a group, and the worker is stopped by the end of its input.
        process_group=0 if os.name == "posix" else None,
    )
    atexit.register(_stop, worker)


def _stop(worker: subprocess.Popen[bytes]) -> None:
    try:
        worker.communicate(timeout=STOP_SECONDS)  # closes its input
    except subprocess.TimeoutExpired:
        worker.kill()
