"""How the processes of a worker start: by ``fork``, or by ``exec`` of a new interpreter.

A fork shares the memory of the supervisor, so it is quick and small. On macOS libpq and Objective-C may crash after a
fork, so a new interpreter is started there, which imports the project again.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NoReturn, Protocol

from django.core.exceptions import ImproperlyConfigured

from ..conf import get_settings
from ..log_texts import error_line
from . import exec_start, sessions
from .child import EXIT_GRACE
from .options import WorkerOptions
from .processes import STOP_SIGNALS, die_with_parent
from .slots import open_unnamed_file

logger = logging.getLogger("django_jobqueue.worker")

CAN_FORK = hasattr(os, "fork")  # Windows cannot


class StartMethod(StrEnum):
    FORK = "fork"
    EXEC = "exec"
    THREAD = "thread"  # no other process: the child and its housekeeping are threads of the command


def start_method() -> StartMethod:
    """The method of the settings, or the default of the platform. Raises ``ImproperlyConfigured``."""
    method = StartMethod(get_settings().START_METHOD or _default())
    if method != StartMethod.THREAD and not CAN_FORK:
        raise ImproperlyConfigured(
            f"JOBQUEUE['START_METHOD'] is {method.value!r}, but on Windows a worker is a single process: use 'thread'."
        )
    if method == StartMethod.EXEC and not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise ImproperlyConfigured(
            "A worker whose processes start by 'exec' needs DJANGO_SETTINGS_MODULE, because each process reads the "
            "settings again. Put the settings into a module, or set JOBQUEUE['START_METHOD'] to 'thread'."
        )
    return method


def _default() -> StartMethod:
    if not CAN_FORK:
        return StartMethod.THREAD
    return StartMethod.EXEC if sys.platform == "darwin" else StartMethod.FORK


class Work(Protocol):
    """What a process does, as a value that can be pickled."""

    outlives: ClassVar[bool]  # whether it goes on for a moment when the supervisor has died

    @property
    def files(self) -> list[int]:
        """The descriptors that the process needs."""

    def run(self) -> int:
        """Do the work, and return the exit code."""


@dataclass(frozen=True)
class Start:
    """What each process of a worker begins with."""

    work: Work
    options: WorkerOptions
    supervisor: int  # its process id
    leads_group: bool

    def run(self) -> NoReturn:
        code = 1
        try:
            if self.leads_group:
                lead_group(0)
            if not self.work.outlives:
                die_with_parent(self.supervisor, EXIT_GRACE)
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            faulthandler.register(signal.SIGQUIT, all_threads=True)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, exec_start.BLOCKED)
            random.seed()
            sessions.prepare(self.options.using)
            code = self.work.run()
        except BaseException as error:  # nothing may run on in a second copy of the supervisor
            logger.exception(
                "process of the worker failed: %s pid %d: %s",
                self.options.name,
                os.getpid(),
                error_line(error),
                extra={"worker": self.options.name, "pid": os.getpid(), "error": error_line(error)},
            )
        finally:
            logging.shutdown()
            os._exit(code)


def lead_group(pid: int) -> None:
    """Let a process lead a process group. Parent and child call this, because either may be the first to rely on it."""
    with suppress(OSError):  # it has done so already, or has ended
        os.setpgid(pid, pid)


def fork(start: Start, leave: Callable[[], None]) -> int:
    """Start a process as a copy of this one, in which ``leave`` closes what belongs to this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        try:
            leave()
        finally:
            start.run()
    return pid


def execute(start: Start) -> int:
    """Start a process as a new interpreter, with the same settings and search path."""
    file = open_unnamed_file()
    header = json.dumps({"path": sys.path, "argv": sys.argv}).encode() + b"\n"
    os.pwrite(file, header + pickle.dumps(start), 0)
    inherited = [file, *start.work.files]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    what = type(start.work).__name__.lower()
    arguments = [sys.executable, *flags, "-P", str(Path(exec_start.__file__)), str(file), start.options.name, what]
    try:
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        return os.posix_spawn(sys.executable, arguments, os.environ, setsigmask=exec_start.BLOCKED)
    finally:
        for descriptor in inherited:
            os.set_inheritable(descriptor, False)
        os.close(file)
