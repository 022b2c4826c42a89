"""The supervisor: starts children and the housekeeping process, watches them, and replaces those that end.

It has no threads, because it forks, and no connection to the database, so that it never waits: it must end its children
in time when the database cannot be reached, and it must always react to signals.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from types import FrameType
from typing import Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from ..conf import get_settings
from ..identifiers import uuid7
from ..timings import KILL_AFTER_SECONDS, TICK_SECONDS
from . import health
from .child import EXIT_DONE, ChildWork
from .child_process import ChildProcess
from .claims import WorkerIdentity
from .housekeeper import HousekeepingWork
from .messages import (
    ChildEnded,
    ChildLost,
    ChildOrder,
    ChildRecovered,
    DatabaseChecked,
    Finish,
    Instruction,
    Report,
    StopRequested,
)
from .options import WorkerOptions
from .processes import STOP_SIGNALS, kill_group, send_signal
from .progress import Progress
from .slots import Slots
from .start_methods import Start, StartMethod, Work, execute, fork, lead_group
from .tally import Tally, log_stopped

logger = logging.getLogger("django_jobqueue.worker")

STDIN = 0
DUMP_SECONDS = 0.1
EXEC_SECONDS = 60.0  # how long a new interpreter may take to import the project
HOUSEKEEPER_SECONDS = 1.0  # a housekeeping process that dies at once is replaced at most this often


class Supervisor:
    """Runs one worker until it is told to stop; :meth:`run` returns the exit code."""

    def __init__(
        self,
        options: WorkerOptions,
        method: StartMethod,
        *,
        report: Callable[[DatabaseChecked], object],
        is_checked: bool = False,
    ) -> None:
        self.options, self.settings = options, get_settings()
        self._method, self._report = method, report
        self._is_checked = is_checked  # otherwise the housekeeping process checks the database first
        self._refused: ImproperlyConfigured | None = None
        self._pid = os.getpid()
        count = options.slots(self.settings)
        new_slots = Slots.in_file if method == StartMethod.EXEC else Slots
        self._slots = [new_slots(count) for _ in range(options.processes)]  # first: all processes share them
        self._housekeeping = new_slots(0)  # when the loop of the housekeeping process last began an iteration
        self._children: dict[int, ChildProcess] = {}
        self._housekeeper_pid = 0
        self._pipe: Connection | None = None
        self._unrecovered: dict[UUID, ChildEnded] = {}
        self._start_at = [0.0] * options.processes
        self._quick_deaths = [0] * options.processes
        self._asked_to_dump = False
        self._asked_to_stop = 0  # how often, by signals or by an operator
        self._stops = 0  # how often the children were told to stop
        self._stop_by = float("inf")
        self._leaving = False
        self._wakeup_r, self._wakeup_w = os.pipe()
        self._progress = Progress() if Progress.is_wanted(options) else None
        self._ended = Tally()  # of children that have ended
        self._began_at = time.monotonic()
        self._health = health.open_port(options.health_port) if options.health_port else None
        self._housekeeper_at = 0.0  # when the housekeeping process may be started
        # Each process leads a process group, so that the processes its handlers started can be killed with it. Not in a
        # terminal: only one group may read from the keyboard, and a handler with a breakpoint() must be in that group.
        self._has_groups = not os.isatty(0)

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self) -> int:
        self._prepare()
        if self._is_checked:
            self._log_started()
        while self._is_needed():
            if not self._housekeeper_pid and time.monotonic() >= self._housekeeper_at:
                self._start_housekeeper()
            self._start_children()
            self._dump_if_asked()
            self._stop_if_asked()
            self._look_after_children()
            self._show_progress()
            self._wait()
            self._reap()
            self._read_reports()
        self._dismiss_housekeeper()
        if self._refused:
            raise self._refused
        if self._progress:
            self._progress.close(self.tally(), self._housekeeping.total)
        log_stopped(self.options.name, self.tally(), self.seconds())
        return 0

    def _begin(self, checked: DatabaseChecked) -> None:
        """Go on, unless the database lacks what children need. So far they wait to be registered."""
        try:
            self._report(checked)
        except ImproperlyConfigured as error:
            self._refused = error
            for child in self._children.values():
                child.send(ChildOrder.STOP_NOW)
            return
        self._is_checked = True
        self._log_started()

    def _log_started(self) -> None:
        logger.info(
            "worker started: %s pid %d, processes %d, queues %s",
            self.options.name,
            self._pid,
            self.options.processes,
            ", ".join(self.options.queues) or "all declared ones",
            extra={
                "worker": self.options.name,
                "pid": self._pid,
                "processes": self.options.processes,
                "queues": self.options.queues,
            },
        )

    def tally(self) -> Tally:
        """How the jobs of all children ended."""
        return sum((child.slots.tally for child in self._children.values()), self._ended)

    def seconds(self) -> float:
        """How long the worker has run."""
        return time.monotonic() - self._began_at

    def _prepare(self) -> None:
        connections.close_all()
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGQUIT, self._on_quit_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        os.set_blocking(self._wakeup_w, False)
        os.set_blocking(self._wakeup_r, False)
        signal.set_wakeup_fd(self._wakeup_w, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # so that the children go on sharing the memory that is in use now

    def _is_needed(self) -> bool:
        if self._children:
            return True
        return not self._stops and not self._refused and any(at < float("inf") for at in self._start_at)

    def _wait(self) -> None:
        watched: list[Any] = [self._wakeup_r]
        if self._pipe is not None:
            watched.append(self._pipe)
        if self.options.stop_on_eof and not self._asked_to_stop:
            watched.append(STDIN)
        readable, _, _ = select.select(watched, [], [], TICK_SECONDS)
        if STDIN in readable and not os.read(STDIN, 4096):
            self._asked_to_stop = 2
        with suppress(BlockingIOError):
            while os.read(self._wakeup_r, 4096):
                pass

    # -------------------------------------------------------------------------------------------------- signals

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop += 1

    def _stop_if_asked(self) -> None:
        while self._stops < self._asked_to_stop:
            self._begin_stop()

    def _begin_stop(self) -> None:
        self._stops += 1
        self._stop_by = time.monotonic() + (self.options.grace if self._stops == 1 else 0) + KILL_AFTER_SECONDS
        facts = {"worker": self.options.name, "grace": self.options.grace}
        if self._stops == 1:
            logger.info(
                "worker is stopping: %s, running jobs have %g s to end",
                self.options.name,
                self.options.grace,
                extra=facts,
            )
        else:
            logger.info(
                "worker is stopping at once: %s, running jobs return to the queue", self.options.name, extra=facts
            )

    def _on_quit_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_dump = True

    def _dump_if_asked(self) -> None:
        """Dump the stacks of all processes, one after the other, because each writes in small pieces."""
        if self._asked_to_dump:
            self._asked_to_dump = False
            faulthandler.dump_traceback(all_threads=True)
            for pid in [*self._children, self._housekeeper_pid]:
                send_signal(pid, signal.SIGQUIT)
                time.sleep(DUMP_SECONDS)

    def _order_to_stop(self, child: ChildProcess) -> None:
        """Tell a child to stop; the second time, at once."""
        child.orders = self._stops
        child.send(ChildOrder.STOP if self._stops == 1 else ChildOrder.STOP_NOW)

    # ------------------------------------------------------------------------------------------------- children

    def _start_children(self) -> None:
        if self._stops or self._refused:
            return
        running = {child.number for child in self._children.values()}
        for number, at in enumerate(self._start_at):
            if number not in running and time.monotonic() >= at:
                self._start_child(number)

    def _start_child(self, number: int) -> None:
        slots = self._slots[number]
        slots.reset()
        name = self.options.name if self.options.processes == 1 else f"{self.options.name}/{number + 1}"
        identity = WorkerIdentity(name, uuid7(), self.options.using)
        control_r, control_w = os.pipe()
        pid = self._start(ChildWork(identity, self.options, slots, control_r), control_w)
        os.close(control_r)
        child = ChildProcess(number, identity.incarnation, name, pid, control_w, slots, time.monotonic())
        self._children[pid] = child
        self._instruct(child.started(self.options.served_queues()))
        logger.debug("child started: %s pid %d", name, pid, extra={"worker": name, "pid": pid})

    def _start(self, work: Work, *ours: int) -> int:
        """Start a process, which closes the descriptors ``ours`` and others of the supervisor."""
        start = Start(work, self.options, self._pid, self._has_groups)
        pid = execute(start) if self._method == StartMethod.EXEC else fork(start, lambda: self._leave(ours))
        if self._has_groups:
            lead_group(pid)
        return pid

    def _leave(self, ours: tuple[int, ...]) -> None:
        """In a fork: close what belongs to the supervisor."""
        signal.set_wakeup_fd(-1)
        for descriptor in (*ours, self._wakeup_r, self._wakeup_w):
            os.close(descriptor)
        for child in self._children.values():
            os.close(child.control)
        if self._pipe is not None:
            self._pipe.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if not pid:
                return
            child = self._children.get(pid)
            if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                if child is not None:
                    child.frozen_since = time.monotonic() if os.WIFSTOPPED(status) else None
            elif child is not None:
                self._child_ended(child, status)
            elif pid == self._housekeeper_pid:
                self._housekeeper_pid = 0
                self._housekeeper_at = max(time.monotonic(), self._housekeeper_at + HOUSEKEEPER_SECONDS)
                if not self._leaving:
                    code = os.waitstatus_to_exitcode(status)
                    logger.error(
                        "housekeeping process died: worker %s, pid %d, exit code %d; another is started",
                        self.options.name,
                        pid,
                        code,
                        extra={"worker": self.options.name, "pid": pid, "code": code},
                    )

    def _child_ended(self, child: ChildProcess, status: int) -> None:
        now = time.monotonic()
        del self._children[child.pid]
        kill_group(child.pid)  # before other workers can claim its jobs
        os.close(child.control)
        ended = child.ended(os.waitstatus_to_exitcode(status), now)
        self._ended += child.slots.tally
        self._unrecovered[child.incarnation] = ended
        self._instruct(ended)
        quick = self._quick_deaths[child.number] = 0 if child.was_useful(now) else self._quick_deaths[child.number] + 1
        drained = self.options.drain and child.slots.exit_code == EXIT_DONE
        pause = 0.0 if quick < 3 else min(0.1 * 2 ** (quick - 3), 5.0)
        self._start_at[child.number] = float("inf") if drained else now + pause

    def _look_after_children(self) -> None:
        """Kill processes that hang, that have lost contact with the database, or that did not exit in time."""
        now = time.monotonic()
        if self._housekeeper_pid and now - self._housekeeping.turned_at > 2 * self.settings.WORKER_FENCE_SECONDS:
            logger.warning(
                "housekeeping process hangs: worker %s, pid %d; it is replaced",
                self.options.name,
                self._housekeeper_pid,
                extra={"worker": self.options.name, "pid": self._housekeeper_pid},
            )
            self._housekeeping.turned_at = now
            send_signal(self._housekeeper_pid, signal.SIGKILL)
        for child in self._children.values():
            if child.orders < self._stops:
                self._order_to_stop(child)
            if child.killed_because:
                continue
            why = "did not stop in time" if now > self._stop_by else child.fault(now, self.settings)
            if why:
                self._kill(child, why)

    def _kill(self, child: ChildProcess, why: str) -> None:
        logger.error(
            "child is killed: %s pid %d %s",
            child.name,
            child.pid,
            why,
            extra={"worker": child.name, "pid": child.pid, "why": why},
        )
        child.killed_because = why
        send_signal(child.pid, signal.SIGKILL)

    def _show_progress(self) -> None:
        if self._progress and self._is_checked:  # the check may have something to say first
            self._progress.show(self.tally(), self._housekeeping.total)

    # ---------------------------------------------------------------------------------------------- housekeeper

    def _start_housekeeper(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._pipe, theirs = Pipe()
        self._housekeeper_at = time.monotonic()
        self._housekeeping.turned_at = self._housekeeper_at + (EXEC_SECONDS if self._method == StartMethod.EXEC else 0)
        work = HousekeepingWork(
            self.options,
            theirs.fileno(),
            self._slots,
            self._housekeeping,
            self._health.fileno() if self._health else None,
            self._pid,
            checks_database=not self._is_checked,
        )
        self._housekeeper_pid = self._start(work)
        theirs.close()
        for child in self._children.values():
            self._instruct(child.started(self.options.served_queues()))
        for ended in self._unrecovered.values():
            self._instruct(ended)

    def _instruct(self, instruction: Instruction) -> None:
        with suppress(OSError):  # the housekeeping process may have died; its successor gets all instructions again
            if self._pipe is not None:
                self._pipe.send(instruction)

    def _read_reports(self) -> None:
        try:
            while self._pipe is not None and self._pipe.poll():
                self._handle_report(self._pipe.recv())
        except (EOFError, OSError):
            return

    def _handle_report(self, report: Report) -> None:
        match report:
            case DatabaseChecked() as checked:
                self._begin(checked)
            case ChildRecovered(incarnation):
                self._unrecovered.pop(incarnation, None)
            case StopRequested() if not self._stops:
                logger.info(
                    "operator asked the worker to stop: %s", self.options.name, extra={"worker": self.options.name}
                )
                self._asked_to_stop = 1
            case ChildLost(incarnation):
                for child in self._children.values():
                    if child.incarnation == incarnation and not child.killed_because:
                        self._kill(child, "was treated as lost by other workers, because its heartbeat was too old")

    def _dismiss_housekeeper(self) -> None:
        """Let it recover the last jobs and exit. If the database is away, other workers recover them."""
        self._leaving = True
        self._instruct(Finish())
        leave_by = time.monotonic() + 6
        while self._housekeeper_pid and time.monotonic() < leave_by:
            self._wait()
            self._reap()
        if self._housekeeper_pid:
            send_signal(self._housekeeper_pid, signal.SIGKILL)
