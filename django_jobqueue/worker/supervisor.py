"""The process a person starts: forks children and a keeper, sees how they end, and replaces them.

It has no threads, because it forks, and no connection to the database, so that nothing can make it wait: it must end
its children in time when the database is out of reach, and it must always answer a signal.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from types import FrameType
from typing import Any
from uuid import UUID

from django.db import connections

from .. import handlers
from ..conf import get_settings
from ..engine.workers import Running
from ..identifiers import uuid7
from ..timings import KILL_AFTER_SECONDS, TICK_SECONDS
from . import health, sessions
from .child import EXIT_DONE, EXIT_GRACE, EXIT_OVERDUE, EXIT_REPLACE, Child
from .housekeeper import Death, Keeper, Kept
from .options import WorkerOptions
from .progress import Progress
from .slots import Slots

logger = logging.getLogger("django_jobqueue.worker")

HANG_SECONDS = 2 * sessions.STATEMENT_SECONDS  # longer than any statement of its loop may take
DUMP_SECONDS = 0.1
KEEPER_SECONDS = 1.0  # one that dies at once is not replaced more often than that
OUR_EXITS = {
    EXIT_DONE: "has stopped",
    EXIT_REPLACE: "was replaced",
    EXIT_OVERDUE: "was replaced because a handler did not stop",
    EXIT_GRACE: "has stopped; the grace period was over",
}


@dataclass
class Offspring:
    """A child process, as its supervisor knows it."""

    number: int
    incarnation: UUID
    name: str
    pid: int
    control: int  # a byte written here tells it something; that it is closed tells it that we are gone
    slots: Slots
    started_at: float
    told: int = 0  # to stop, how often
    ended_by_us: str = ""
    frozen_since: float | None = None
    suspicious: dict[Running, float] = field(default_factory=dict)


class Supervisor:
    """Runs one worker until it is told to stop; :meth:`run` returns the exit code."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options, self.settings = options, get_settings()
        self._pid = os.getpid()
        count = options.concurrency + self.settings.ASYNC_CONCURRENCY
        self._slots = [Slots(count) for _ in range(options.processes)]  # shared with the keeper too: so made first
        self._keeping = Slots(0)  # when the keeper's loop last came round
        self._children: dict[int, Offspring] = {}
        self._keeper_pid = 0
        self._keeper: Connection | None = None
        self._unburied: dict[UUID, Death] = {}
        self._start_at = [0.0] * options.processes
        self._quick_deaths = [0] * options.processes
        self._asked_to_dump = False
        self._asked_to_stop = 0  # how often, by signals or the database
        self._stops = 0  # how often we told the children
        self._stop_by = float("inf")
        self._leaving = False
        self._wakeup_r, self._wakeup_w = os.pipe()
        self._progress = Progress(options) if options.drain else None
        self._health = health.open_port(options.health_port) if options.health_port else None
        self._keeper_at = 0.0  # when it may be started
        # Each process leads a process group, so that what its handlers started can be ended with it. Not in a terminal:
        # only one group may read from the keyboard, and a handler with a breakpoint() must be in that group.
        self._has_groups = not os.isatty(0)

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self) -> int:
        self._prepare()
        logger.info(
            "worker started",
            extra={"worker": self.options.name, "processes": self.options.processes, "queues": self.options.queues},
        )
        while self._is_needed():
            if not self._keeper_pid and time.monotonic() >= self._keeper_at:
                self._start_keeper()
            self._start_children()
            self._dump_if_asked()
            self._stop_if_asked()
            self._look_after_children()
            self._show_progress()
            self._wait()
            self._reap()
            self._listen_to_keeper()
        self._dismiss_keeper()
        if self._progress:
            self._progress.close()
        logger.info("worker stopped", extra={"worker": self.options.name})
        return 0

    def _prepare(self) -> None:
        connections.close_all()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._hear_signal)
        signal.signal(signal.SIGQUIT, self._hear_quit)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        os.set_blocking(self._wakeup_w, False)
        os.set_blocking(self._wakeup_r, False)
        signal.set_wakeup_fd(self._wakeup_w, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # what is there now is shared with the children, and stays so

    def _is_needed(self) -> bool:
        if self._children:
            return True
        return not self._stops and any(at < float("inf") for at in self._start_at)

    def _wait(self) -> None:
        watched: list[Any] = [self._wakeup_r]
        if self._keeper is not None:
            watched.append(self._keeper)
        select.select(watched, [], [], TICK_SECONDS)
        with suppress(BlockingIOError):
            while os.read(self._wakeup_r, 4096):
                pass

    # -------------------------------------------------------------------------------------------------- signals

    def _hear_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop += 1

    def _stop_if_asked(self) -> None:
        while self._stops < self._asked_to_stop:
            self._tell_all_to_stop()

    def _tell_all_to_stop(self) -> None:
        self._stops += 1
        self._stop_by = time.monotonic() + (self.options.grace if self._stops == 1 else 0) + KILL_AFTER_SECONDS
        text = "stopping" if self._stops == 1 else "stopping at once"
        logger.info(text, extra={"worker": self.options.name, "grace": self.options.grace})

    def _hear_quit(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_dump = True

    def _dump_if_asked(self) -> None:
        """The stacks of all processes, one after the other, because each writes in small pieces."""
        if self._asked_to_dump:
            self._asked_to_dump = False
            faulthandler.dump_traceback(all_threads=True)
            for pid in [*self._children, self._keeper_pid]:
                _signal(pid, signal.SIGQUIT)
                time.sleep(DUMP_SECONDS)

    def _tell(self, child: Offspring) -> None:
        """That it should stop, or, the second time, at once; also one that was started meanwhile."""
        word = b"s" if self._stops == 1 else b"r"
        child.told = self._stops
        with suppress(OSError):  # it may be gone already
            os.write(child.control, word)

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
        incarnation = uuid7()
        control_r, control_w = os.pipe()
        pid = self._fork(lambda: self._be_child(name, incarnation, slots, control_r, control_w))
        os.close(control_r)
        child = Offspring(number, incarnation, name, pid, control_w, slots, time.monotonic())
        self._children[pid] = child
        self._send("add", self._kept(child))
        logger.debug("child started", extra={"worker": name, "pid": pid})

    def _kept(self, child: Offspring) -> tuple[Any, ...]:
        queues = list(self.options.queues) or sorted(handlers.served(handlers.all_handlers()))
        return (child.number, child.incarnation, child.name, child.pid, queues, bool(child.slots.renewed))

    def _fork(self, work: Callable[[], int], *, outlives: bool = False) -> int:
        """Start a process that does this work, and ends with us unless it ``outlives`` us for a moment."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._lead_group(pid)  # both sides do, because either may be the first to rely on it
            return pid
        code = 1
        try:
            self._lead_group(0)
            if not outlives:
                _die_with(self._pid)
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
        except BaseException:  # nothing may run on in a second copy of the supervisor
            logger.exception("a process of the worker ended by an error", extra={"worker": self.options.name})
        finally:
            logging.shutdown()
            os._exit(code)

    def _lead_group(self, pid: int) -> None:
        if self._has_groups:
            with suppress(OSError):  # it has done so itself, or is gone
                os.setpgid(pid, pid)

    def _be_child(self, name: str, incarnation: UUID, slots: Slots, control_r: int, control_w: int) -> int:
        os.close(control_w)
        if self._keeper is not None:
            self._keeper.close()
        child = Child(self.options, name, incarnation, slots)
        signal.signal(signal.SIGTERM, lambda *_: child.stop_soon())
        threading.Thread(target=_obey, args=(control_r, child), name="jobqueue-control", daemon=True).start()
        slots.left = child.run()
        return slots.left

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
            elif pid == self._keeper_pid:
                self._keeper_pid = 0
                self._keeper_at = max(time.monotonic(), self._keeper_at + KEEPER_SECONDS)
                if not self._leaving:
                    logger.error("the keeper died; another is started", extra={"worker": self.options.name})

    def _child_ended(self, child: Offspring, status: int) -> None:
        del self._children[child.pid]
        _kill_group(child.pid)  # before others are given its jobs
        os.close(child.control)
        death = self._death_of(child, os.waitstatus_to_exitcode(status))
        self._unburied[child.incarnation] = death
        self._send("bury", death)
        useful = time.monotonic() - child.started_at > 10 or any(child.slots.jobs[:2])
        quick = self._quick_deaths[child.number] = 0 if useful else self._quick_deaths[child.number] + 1
        drained = self.options.drain and child.slots.left == EXIT_DONE
        pause = 0.0 if quick < 3 else min(0.1 * 2 ** (quick - 3), 5.0)
        self._start_at[child.number] = float("inf") if drained else time.monotonic() + pause

    def _death_of(self, child: Offspring, code: int) -> Death:
        now = time.monotonic()
        running = child.slots.running()
        overdue = [one.attempt for one in running if now > one.deadline]
        others = [one.attempt for one in running if now <= one.deadline]
        if child.ended_by_us or (code in OUR_EXITS and child.slots.left == code):
            how, crashed = child.ended_by_us or OUR_EXITS[code], []
        else:
            how = f"died (signal {-code})" if code < 0 else f"left without reporting (exit code {code})"
            crashed, overdue = others + overdue, []
            logger.error("a child %s", how, extra={"worker": child.name, "pid": child.pid, "jobs": len(crashed)})
        return Death(child.incarnation, child.name, how, crashed, overdue)

    def _look_after_children(self) -> None:
        """End those that hang, that are out of touch with the database, or that did not leave in time."""
        now = time.monotonic()
        if self._keeper_pid and now - self._keeping.turned > 2 * self.settings.WORKER_FENCE_SECONDS:
            logger.error("the keeper hangs; it is replaced", extra={"worker": self.options.name})
            self._keeping.turned = now
            _signal(self._keeper_pid, signal.SIGKILL)
        for child in self._children.values():
            if child.told < self._stops:
                self._tell(child)
            if child.ended_by_us:
                continue
            why = self._why_end(child, now)
            if why:
                child.ended_by_us = why
                logger.error("a child is ended: it %s", why, extra={"worker": child.name, "pid": child.pid})
                _signal(child.pid, signal.SIGKILL)

    def _why_end(self, child: Offspring, now: float) -> str:
        if now > self._stop_by:
            return "did not stop in time"
        fence = self.settings.WORKER_FENCE_SECONDS
        if child.frozen_since is not None and now - child.frozen_since > fence:
            return "was frozen"
        running = child.slots.running()
        hangs = now - child.slots.turned > fence  # even if it holds nothing: it waits for an answer that never comes
        if child.slots.renewed and child.slots.silence() > fence and (running or child.slots.jobs[2] or hangs):
            return "lost contact with the database; its handlers were stopped"
        if not running and child.slots.turned and now - child.slots.turned > HANG_SECONDS:
            return "did nothing any more"
        limit = self.settings.EXPIRE_GRACE_SECONDS + KILL_AFTER_SECONDS
        before, child.suspicious = child.suspicious, {}
        for one in running:
            if now > one.deadline + limit:
                if before.get(one.attempt) == one.deadline:  # seen twice: not a slot that was being written
                    return "was replaced because a handler did not stop"
                child.suspicious[one.attempt] = one.deadline
        return ""

    def _show_progress(self) -> None:
        if self._progress:
            self._progress.show([slots.jobs for slots in self._slots])

    # --------------------------------------------------------------------------------------------------- keeper

    def _start_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        ours, theirs = Pipe()
        self._keeper = ours
        self._keeping.turned = self._keeper_at = time.monotonic()
        self._keeper_pid = self._fork(lambda: self._be_keeper(ours, theirs), outlives=True)
        theirs.close()
        for child in self._children.values():
            self._send("add", self._kept(child))
        for death in self._unburied.values():
            self._send("bury", death)

    def _be_keeper(self, ours: Connection, theirs: Connection) -> int:
        ours.close()
        keeper = Keeper(
            self.options,
            lost=lambda incarnation: theirs.send(("lost", incarnation)),
            asked=lambda: theirs.send(("asked", None)),
            buried=lambda incarnation: theirs.send(("buried", incarnation)),
            turned=lambda: setattr(self._keeping, "turned", time.monotonic()),
        )
        groups: dict[UUID, int] = {}
        follow = (theirs, keeper, self._slots, groups)
        threading.Thread(target=_follow, args=follow, name="jobqueue-follow", daemon=True).start()
        if self._health is not None:
            health.serve(keeper, self._health)
        try:
            keeper.run()
        finally:
            if os.getppid() != self._pid:  # it may have noticed before the thread that follows
                _kill_groups(groups)
        return 0

    def _send(self, word: str, content: Any) -> None:
        with suppress(OSError):  # it may have died; whoever follows it is told again
            if self._keeper is not None:
                self._keeper.send((word, content))

    def _listen_to_keeper(self) -> None:
        try:
            while self._keeper is not None and self._keeper.poll():
                self._heard(*self._keeper.recv())
        except (EOFError, OSError):
            return

    def _heard(self, word: str, content: Any) -> None:
        if word == "buried":
            self._unburied.pop(content, None)
        elif word == "asked" and not self._stops:
            logger.info("somebody asked this worker to stop", extra={"worker": self.options.name})
            self._asked_to_stop = 1
        elif word == "lost":
            for child in self._children.values():
                if child.incarnation == content and not child.ended_by_us:
                    child.ended_by_us = "was given up by the others, because it was silent"
                    logger.error("a child %s", child.ended_by_us, extra={"worker": child.name})
                    _signal(child.pid, signal.SIGKILL)

    def _dismiss_keeper(self) -> None:
        """It writes down the last deaths and leaves; if the database is away, others will find what is left."""
        self._leaving = True
        self._send("finish", None)
        leave_by = time.monotonic() + 6
        while self._keeper_pid and time.monotonic() < leave_by:
            self._wait()
            self._reap()
        if self._keeper_pid:
            _signal(self._keeper_pid, signal.SIGKILL)


def _obey(control: int, child: Child) -> None:
    """In a child: do what the supervisor says; when it is gone, be gone too, because others take our jobs."""
    while True:
        word = os.read(control, 1)
        if word == b"s":
            child.stop()
        elif word == b"r":
            child.return_all()
        else:
            os._exit(1)


def _follow(pipe: Connection, keeper: Keeper, slots: list[Slots], groups: dict[UUID, int]) -> None:
    """In the keeper: hear of children; when the supervisor is gone, end what their handlers started, and leave."""
    try:
        while True:
            word, content = pipe.recv()
            if word == "add":
                number, incarnation, name, pid, queues, registered = content
                groups[incarnation] = pid
                keeper.add(Kept(incarnation, name, pid, slots[number], queues, registered))
            elif word == "bury":
                groups.pop(content.incarnation, None)
                keeper.bury(content)
            elif word == "finish":
                keeper.finish()
    except (EOFError, OSError):
        _kill_groups(groups)
    except Exception:
        logger.exception("the housekeeping process cannot understand its supervisor")
    finally:  # whatever happened: a keeper that hears nothing would say for ever that dead children live
        os._exit(EXIT_GRACE)


def _kill_groups(groups: dict[UUID, int]) -> None:
    for pid in list(groups.values()):
        _kill_group(pid)


def _signal(pid: int, number: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill_group(pid: int) -> None:
    """End what a child's handlers started and is in its group; what took a session of its own is not.

    In a terminal, where children lead no groups, there is none of that number.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


_PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    """Where the system can (Linux): be killed when the supervisor dies, even while a handler hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_GRACE)
