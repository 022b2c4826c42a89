"""A worker beside ``manage.py runserver``, while a project is developed."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.conf import settings

from .conf import raw_settings
from .handlers import autodiscover

if TYPE_CHECKING:
    from subprocess import Popen

COMMAND = "runserver"
AUTORELOAD = "RUN_MAIN"  # Django sets it for the process that serves, not for the one that watches the files
STOP_SECONDS = 5.0  # the worker stops at once; one that does not is killed


def wants_worker() -> bool:
    """Whether this process serves, and the settings ask for a worker; they may be wrong in other ways."""
    raw = raw_settings()
    if not settings.DEBUG or not isinstance(raw, Mapping) or raw.get("RUNSERVER_WORKER") is not True:
        return False
    serves = os.environ.get(AUTORELOAD) == "true" or "--noreload" in sys.argv
    return sys.argv[1:2] == [COMMAND] and serves


def start_worker() -> None:
    """Start ``runjobs`` in another process. It ends with this process, however this process ends."""
    from subprocess import PIPE, Popen

    from django.utils.autoreload import get_child_arguments

    autodiscover()  # so that runserver watches the files of the handlers, too
    arguments = get_child_arguments()
    worker = Popen(
        [*arguments[: arguments.index(COMMAND)], "runjobs", "--no-reload", "--stop-on-eof"],
        stdin=PIPE,
        env={name: value for name, value in os.environ.items() if name != AUTORELOAD},
        # Ctrl-C reaches all processes of a group, and the worker is stopped by the end of its input.
        process_group=0 if os.name == "posix" else None,
    )
    atexit.register(_stop, worker)


def _stop(worker: Popen[bytes]) -> None:
    from subprocess import TimeoutExpired

    try:
        worker.communicate(timeout=STOP_SECONDS)  # closes its input
    except TimeoutExpired:
        worker.kill()
