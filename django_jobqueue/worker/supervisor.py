"""The supervisor: forks children and the housekeeping process, watches them, and replaces those that end.

It has no threads, because it forks, and no connection to the database, so that it never waits: it must end its children
in time when the database cannot be reached, and it must always react to signals.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from types import FrameType
from typing import Any
from uuid import UUID

from django.db import connections

from ..conf import get_settings
from ..identifiers import uuid7
from ..log_texts import duration, error_line
from ..timings import KILL_AFTER_SECONDS, TICK_SECONDS
from . import health, sessions
from .child import EXIT_DONE, EXIT_GRACE, run_child
from .child_process import ChildProcess
from .claims import WorkerIdentity
from .housekeeper import run_housekeeper
from .messages import (
    ChildEnded,
    ChildLost,
    ChildOrder,
    ChildRecovered,
    Finish,
    Instruction,
    Report,
    StopRequested,
)
from .options import WorkerOptions
from .processes import die_with_parent, kill_group, send_signal
from .progress import Progress
from .slots import Slots
from .tally import Tally

logger = logging.getLogger("django_jobqueue.worker")

DUMP_SECONDS = 0.1
HOUSEKEEPER_SECONDS = 1.0  # a housekeeping process that dies at once is replaced at most this often


class Supervisor:
    """Runs one worker until it is told to stop; :meth:`run` returns the exit code."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options, self.settings = options, get_settings()
        self._pid = os.getpid()
        self._slots = [
            Slots(options.slots(self.settings)) for _ in range(options.processes)
        ]  # first: all processes share them
        self._housekeeping = Slots(0)  # when the loop of the housekeeping process last began an iteration
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
        self._log_stopped()
        return 0

    def tally(self) -> Tally:
        """How the jobs of all children ended."""
        return sum((child.slots.tally for child in self._children.values()), self._ended)

    def seconds(self) -> float:
        """How long the worker has run."""
        return time.monotonic() - self._began_at

    def _log_stopped(self) -> None:
        tally, seconds = self.tally(), self.seconds()
        if self._progress:
            self._progress.close(tally, self._housekeeping.total)
        logger.info(
            "worker stopped: %s, jobs %s, in %s",
            self.options.name,
            tally,
            duration(seconds),
            extra={
                "worker": self.options.name,
                "completed": tally.completed,
                "failed": tally.failed,
                "retried": tally.retried,
                "cancelled": tally.stopped,
                "snoozed": tally.snoozed,
                "seconds": round(seconds, 3),
            },
        )

    def _prepare(self) -> None:
        connections.close_all()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
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
        return not self._stops and any(at < float("inf") for at in self._start_at)

    def _wait(self) -> None:
        watched: list[Any] = [self._wakeup_r]
        if self._pipe is not None:
            watched.append(self._pipe)
        select.select(watched, [], [], TICK_SECONDS)
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
        if self._stops:
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
        pid = self._fork(lambda: self._be_child(identity, slots, control_r, control_w))
        os.close(control_r)
        child = ChildProcess(number, identity.incarnation, name, pid, control_w, slots, time.monotonic())
        self._children[pid] = child
        self._instruct(child.started(self.options.served_queues()))
        logger.debug("child started: %s pid %d", name, pid, extra={"worker": name, "pid": pid})

    def _fork(self, work: Callable[[], int], *, outlives: bool = False) -> int:
        """Start a process that does this work. It is killed when the supervisor dies, unless it ``outlives`` it."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._lead_group(pid)  # both processes do, because either may be the first that relies on it
            return pid
        code = 1
        try:
            self._lead_group(0)
            if not outlives:
                die_with_parent(self._pid, EXIT_GRACE)
            signal.set_wakeup_fd(-1)
            os.close(self._wakeup_r)
            os.close(self._wakeup_w)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            faulthandler.register(signal.SIGQUIT, all_threads=True)
            for child in self._children.values():
                os.close(child.control)
            random.seed()
            sessions.prepare(self.options.using)
            code = work()
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

    def _lead_group(self, pid: int) -> None:
        if self._has_groups:
            with suppress(OSError):  # it has done so already, or has ended
                os.setpgid(pid, pid)

    def _be_child(self, identity: WorkerIdentity, slots: Slots, control_r: int, control_w: int) -> int:
        os.close(control_w)
        if self._pipe is not None:
            self._pipe.close()
        return run_child(identity, self.options, slots, control_r)

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
        if self._progress:
            self._progress.show(self.tally(), self._housekeeping.total)

    # ---------------------------------------------------------------------------------------------- housekeeper

    def _start_housekeeper(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        ours, theirs = Pipe()
        self._pipe = ours
        self._housekeeping.turned_at = self._housekeeper_at = time.monotonic()
        self._housekeeper_pid = self._fork(lambda: self._be_housekeeper(ours, theirs), outlives=True)
        theirs.close()
        for child in self._children.values():
            self._instruct(child.started(self.options.served_queues()))
        for ended in self._unrecovered.values():
            self._instruct(ended)

    def _be_housekeeper(self, ours: Connection, theirs: Connection) -> int:
        ours.close()
        return run_housekeeper(self.options, theirs, self._slots, self._housekeeping, self._health, self._pid)

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
