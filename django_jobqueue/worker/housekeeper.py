"""The housekeeping process: sends heartbeats for the children, recovers the jobs of dead ones, runs schedules.

It is a process of its own for two reasons: heartbeats must be sent while a handler holds the lock of the interpreter,
and the supervisor must have no threads, because it forks.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, ClassVar
from uuid import UUID

import psycopg
from django.db import DatabaseError, OperationalError, connections

from .. import __version__
from ..conf import get_settings
from ..connection_names import name_process
from ..engine import workers
from ..engine.pools import own_connection
from ..engine.recovery import has_lost_workers
from ..expressions import StatementTimestamp
from ..log_texts import error_line, error_text
from ..maintenance import maintain
from ..models import Worker
from ..services import recover_lost, release_pending, send_alerts
from ..services.operations import advance_operations
from ..services.schedules import send_due
from . import health, sessions
from .child import EXIT_GRACE
from .console import show_log
from .memory import megabytes_of
from .messages import ChildEnded, ChildLost, ChildRecovered, ChildStarted, Finish, Report, StopRequested
from .options import WorkerOptions
from .processes import kill_group
from .progress import Progress, count_total
from .sessions import DATABASE_ERRORS
from .slots import Slots
from .start_check import check_database

logger = logging.getLogger("django_jobqueue.worker")

RECOVER_SECONDS = 1.0
OPERATIONS_SECONDS = 5.0  # how often to check for unfinished operations
STATEMENT_SECONDS = 60.0
TOTAL_SECONDS = 3.0  # how long the jobs of a drain may be counted


@dataclass
class WatchedChild:
    """A child for which heartbeats are sent."""

    incarnation: UUID
    name: str
    pid: int
    slots: Slots
    queues: list[str]
    registered: bool = False


class Housekeeper:
    """Sends heartbeats for the children, recovers the jobs of those that have ended, and runs periodic work.

    ``report`` is called with each report to the supervisor, ``turned`` in each iteration of the loop.
    """

    def __init__(
        self,
        options: WorkerOptions,
        *,
        report: Callable[[Report], None],
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        self.options, self.using = options, options.using
        self.settings = get_settings()
        self.report, self.turned = report, turned
        self.children: dict[UUID, WatchedChild] = {}
        self.ended: list[ChildEnded] = []  # children whose jobs are not yet recovered
        self.lock = threading.Lock()
        self.wake = threading.Event()
        self.stopping = threading.Event()
        self._is_outage = False
        self._logged_at = float("-inf")
        self._connection: Any = None  # the session that holds the session locks
        self._locked: set[UUID] = set()  # the incarnations it holds them for
        self.renewed_at = 0.0
        self._back_at = float("-inf")  # when heartbeats could be sent again after an outage
        self._told_to_stop = False
        self._clock = threading.Lock()
        self._clock_offset: float | None = None  # the clock of the database minus the monotonic clock
        self._trust_at = 0.0

    # --------------------------------------------------------------------------------------------- instructions

    def add(self, child: WatchedChild) -> None:
        with self.lock:
            self.children[child.incarnation] = child
        self.wake.set()

    def recover(self, child: ChildEnded) -> None:
        with self.lock:
            self.children.pop(child.incarnation, None)
            self.ended.append(child)
        self.wake.set()

    def finish(self) -> None:
        """Exit when the jobs of all ended children are recovered."""
        self.stopping.set()
        self.wake.set()

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self, *, check: bool = False) -> None:
        """Send heartbeats until told to exit and the jobs of all ended children are recovered.

        With ``check``, first report whether the database has what the worker needs.
        """
        own_connection(self.using, "heartbeat", self.options.name)
        fence = self.settings.WORKER_FENCE_SECONDS
        sessions.limit(statement=fence / 2, lock=fence / 5)
        if check:
            checked = check_database(self.options)
            self.report(checked)
            if checked.refusal:
                self.stopping.wait()
                return
        for work in self._works():
            threading.Thread(target=self._housekeep, args=work, name=f"jobqueue-{work[0]}", daemon=True).start()
        pause = self.settings.WORKER_HEARTBEAT_SECONDS
        leave_by = float("inf")
        while True:
            self.turned()
            if self.stopping.is_set():
                leave_by = min(leave_by, time.monotonic() + 5)
                if time.monotonic() > leave_by or not self.ended:
                    break
            try:
                self.turn()
                pause = self.settings.WORKER_HEARTBEAT_SECONDS
                if self._is_outage:
                    self._is_outage = False
                    logger.info(
                        "database is back: housekeeping process of worker %s",
                        self.options.name,
                        extra={"worker": self.options.name},
                    )
            except DATABASE_ERRORS as error:
                pause = self._lose_database(error)
            self.wake.wait(0.05 if self.stopping.is_set() or self.ended else pause)
            self.wake.clear()
        connections[self.using].close()

    def _lose_database(self, error: Exception) -> float:
        self._is_outage = True
        pause = min(0.5, self.settings.WORKER_HEARTBEAT_SECONDS) * random.uniform(0.5, 1)
        if time.monotonic() - self._logged_at > 5:
            self._logged_at = time.monotonic()
            logger.warning(
                "lost connection to the database: housekeeping process of worker %s: %s; trying again in %.1f s",
                self.options.name,
                error_line(error),
                pause,
                extra={"worker": self.options.name, "error": error_text(error), "seconds": round(pause, 1)},
            )
        connections[self.using].close()
        return pause

    def turn(self) -> None:
        """Register new children, send heartbeats for all, and recover the jobs of those that have ended."""
        with self.lock:
            children = list(self.children.values())
        began = time.monotonic()
        for child in children:
            if not child.registered:
                self._register(child)
        self._hold_locks(children)
        if children:
            self._beat(children)
        for child in children:
            if child.incarnation in self.children:
                child.slots.renewed_at = began
        if self.renewed_at and self._is_out_of_touch():
            self._back_at = time.monotonic()
        self.renewed_at = began
        # After the heartbeats of the children, which must be sent even if a transaction has locked the table of jobs.
        with _unless_locked(), sessions.limited(self.using):
            workers.beat_jobs(
                [child.name for child in children], [child.incarnation for child in children], using=self.using
            )
        for ended in list(self.ended):
            with _unless_locked():
                self._recover_child(ended)

    def _recover_child(self, child: ChildEnded) -> None:
        with sessions.limited(self.using):
            recovered = workers.recover_dead(
                child.name, child.incarnation, child.how, crashed=child.crashed, overdue=child.overdue, using=self.using
            )
        if recovered:
            logger.info(
                "jobs of a child were recovered: %s %s, jobs %d",
                child.name,
                child.how,
                recovered,
                extra={"worker": child.name, "how": child.how, "jobs": recovered},
            )
        if child.incarnation in self._locked and not self._is_new_session():
            workers.drop_session_lock(child.incarnation, using=self.using)
        self._locked.discard(child.incarnation)
        with self.lock:
            self.ended.remove(child)
        self.report(ChildRecovered(child.incarnation))

    def _register(self, child: WatchedChild) -> None:
        row = Worker(
            pk=child.incarnation,
            name=child.name,
            host=socket.gethostname()[:255],
            pid=child.pid,
            queues=child.queues,
            handlers=[],  # the child announces its own
            tags=list(self.options.tags),
            capacity=self.options.threads,
            version=__version__,
            has_session_lock=not self.settings.POOLER,
            unlocked_seconds=self.settings.WORKER_UNLOCKED_SECONDS,
            lost_seconds=self.settings.WORKER_LOST_SECONDS,
            stop_grace_seconds=self.settings.STOP_GRACE_SECONDS,
        )
        ours = [*self.children, *(child.incarnation for child in self.ended)]
        others = Worker.objects.using(self.using).filter(name=child.name, stopped_at=None).exclude(pk__in=ours)
        if others.filter(heartbeat_at__gt=_recently()).exists():
            logger.warning(
                "worker name reused: another worker has the name %s", child.name, extra={"worker": child.name}
            )
        workers.register(row, using=self.using)
        child.registered = True

    def _is_new_session(self) -> bool:
        return self._connection is None or connections[self.using].connection is not self._connection

    def _hold_locks(self, children: list[WatchedChild]) -> None:
        if self.settings.POOLER:
            return
        connections[self.using].ensure_connection()
        if self._is_new_session():
            self._connection, self._locked = connections[self.using].connection, set()
        fresh = {child.incarnation for child in children} - self._locked
        self._locked |= workers.take_session_locks(fresh, using=self.using)

    def _beat(self, children: list[WatchedChild]) -> None:
        answer = workers.beat({child.incarnation: _stats(child) for child in children}, using=self.using)
        for child in children:
            if child.incarnation not in answer.alive:
                with self.lock:
                    self.children.pop(child.incarnation, None)
                self.report(ChildLost(child.incarnation))
        if answer.stopping and not self._told_to_stop:
            self._told_to_stop = True
            self.report(StopRequested())

    # --------------------------------------------------------------------------------------------- housekeeping

    def _works(self) -> Iterator[tuple[str, float, Callable[[], object]]]:
        """The periodic work and how often it runs. Each kind of work runs in only one worker at a time."""
        yield "recovery", RECOVER_SECONDS, self._recover
        yield "maintenance", self.settings.MONITOR_SECONDS, self._maintain
        yield "operations", OPERATIONS_SECONDS, lambda: advance_operations(seconds=30.0, using=self.using)
        if self.options.schedules:
            yield "schedules", self.settings.SCHEDULE_SECONDS, lambda: send_due(using=self.using)
        if self.settings.ALERTS:
            yield "alerts", self.settings.MONITOR_SECONDS, self._send_alerts

    def _housekeep(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        """Run periodic work in a thread of its own: a long cleanup must not delay schedules."""
        own_connection(self.using, name, self.options.name)
        sessions.limit(statement=STATEMENT_SECONDS)
        broken = False
        while not self.stopping.is_set():
            try:
                work()
                broken = False
            except DATABASE_ERRORS as error:
                connections[self.using].close()
                if not broken and not self._is_outage:
                    logger.warning(
                        "background work failed: %s of worker %s: %s; trying again in %g s",
                        name,
                        self.options.name,
                        error_line(error),
                        seconds,
                        extra={"worker": self.options.name, "work": name, "error": error_text(error)},
                    )
                broken = True
            except Exception as error:  # a bug must not end the work for good
                if not broken:
                    logger.exception(
                        "background work failed: %s of worker %s: %s; trying again in %g s",
                        name,
                        self.options.name,
                        error_line(error),
                        seconds,
                        extra={"worker": self.options.name, "work": name, "error": error_line(error)},
                    )
                broken = True
            self.stopping.wait(seconds * random.uniform(0.9, 1.1))
        connections[self.using].close()

    def _maintain(self) -> None:
        if self._may_judge_heartbeats():
            maintain(every=self.settings.MONITOR_SECONDS / 2, using=self.using)

    def _send_alerts(self) -> None:
        """Tell operators of problems. It has its own thread, because a mail server may take long to answer."""
        send_alerts(every=self.settings.MONITOR_SECONDS / 2, using=self.using)
        connections[self.using].close()  # it is needed once a minute

    def _recover(self) -> None:
        with sessions.limited(self.using):
            release_pending(using=self.using)
        if not self._may_judge_heartbeats():
            return
        with sessions.limited(self.using):
            gone = has_lost_workers(using=self.using)
        if gone:
            for queue, number in recover_lost(using=self.using).items():
                logger.warning(
                    "jobs of a lost worker were recovered: queue %s, jobs %d",
                    queue,
                    number,
                    extra={"worker": self.options.name, "queue": queue, "jobs": number},
                )

    def _is_out_of_touch(self) -> bool:
        """Whether the database was away for so long that other workers may have ended their handlers, too."""
        return time.monotonic() - self.renewed_at > self.settings.WORKER_FENCE_SECONDS

    def _may_judge_heartbeats(self) -> bool:
        """Whether the age of a heartbeat says that a worker is lost.

        It does not after an outage: no worker could send heartbeats, and each worker returns its own jobs when it is
        back, without using up a retry. Neither does it after a standby was promoted, which may lack heartbeats, after
        the clock of the database jumped ahead, or shortly after the start, when a jump would not be noticed.
        """
        patience = self.settings.WORKER_UNLOCKED_SECONDS
        if self._is_out_of_touch() or time.monotonic() - self._back_at < patience:
            return False
        if workers.seconds_on_timeline(using=self.using) < patience:
            return False
        with self._clock:
            return not self._distrusts_clock()

    def _distrusts_clock(self) -> bool:
        began = time.monotonic()
        ahead = workers.clock(using=self.using) - began
        before, self._clock_offset = self._clock_offset, ahead
        jumped = 0.0 if before is None else ahead - before
        if before is None or jumped > 1 + (time.monotonic() - began):
            self._trust_at = began + 3 * self.settings.WORKER_HEARTBEAT_SECONDS + RECOVER_SECONDS
        if jumped > 1 + (time.monotonic() - began):
            logger.warning(
                "clock of the database went ahead: %.1f s; deadlines of running jobs are moved",
                jumped,
                extra={"worker": self.options.name, "seconds": round(jumped, 1)},
            )
            with self.lock:
                children = list(self.children.values())
            names, incarnations = [child.name for child in children], [child.incarnation for child in children]
            workers.move_deadlines(names, incarnations, jumped, using=self.using)
        return began < self._trust_at


@contextmanager
def _unless_locked() -> Iterator[None]:
    """Skip rows that another transaction has locked: the next iteration tries again."""
    try:
        yield
    except workers.StillLocked:
        pass
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled):
            raise


def _stats(child: WatchedChild) -> str:
    done, failed, held = child.slots.jobs
    return json.dumps({"done": done, "failed": failed, "held": held, "memory_mb": megabytes_of(child.pid)})


def _recently() -> Any:
    return StatementTimestamp() - timedelta(seconds=get_settings().WORKER_UNLOCKED_SECONDS)


# ---------------------------------------------------------------------------------------------------- as a process


@dataclass(frozen=True)
class HousekeepingWork:
    """Run the housekeeping process, until the supervisor tells it to exit or has ended."""

    options: WorkerOptions
    pipe: int  # to and from the supervisor
    slots: list[Slots]  # those of the children, by their numbers
    own_slots: Slots  # here the supervisor sees that the loop runs
    health: int | None  # the socket for probes
    supervisor: int  # its process id
    checks_database: bool  # before the first child starts

    outlives: ClassVar = True  # it kills what handlers started

    @property
    def files(self) -> list[int]:
        probes = [] if self.health is None else [self.health]
        return [self.pipe, self.own_slots.file, *(slots.file for slots in self.slots), *probes]

    def run(self) -> int:
        name_process("runjobs", self.options.name, "housekeeping")
        show_log(self.options)
        supervisor = Connection(self.pipe)
        self._turned()
        housekeeper = Housekeeper(self.options, report=supervisor.send, turned=self._turned)
        groups: dict[UUID, int] = {}
        follow = (supervisor, housekeeper, self.slots, groups)
        threading.Thread(target=_follow, args=follow, name="jobqueue-follow", daemon=True).start()
        if self.health is not None:
            health.serve(lambda: housekeeper, socket.socket(fileno=self.health))
        if Progress.is_wanted(self.options) and not self.own_slots.total:
            _tell_total(self.options, self.own_slots)
        try:
            housekeeper.run(check=self.checks_database)
        finally:
            if os.getppid() != self.supervisor:  # it has ended, and the other thread may not have noticed yet
                _kill_groups(groups)
        return 0

    def _turned(self) -> None:
        self.own_slots.turned_at = time.monotonic()


def _follow(supervisor: Connection, housekeeper: Housekeeper, slots: list[Slots], groups: dict[UUID, int]) -> None:
    """Follow the instructions of the supervisor. When it has ended, kill what handlers started, and exit."""
    try:
        while True:
            match supervisor.recv():
                case ChildStarted() as child:
                    groups[child.incarnation] = child.pid
                    shared = slots[child.number]
                    housekeeper.add(
                        WatchedChild(
                            child.incarnation, child.name, child.pid, shared, child.queues, child.is_registered
                        )
                    )
                case ChildEnded() as child:
                    groups.pop(child.incarnation, None)
                    housekeeper.recover(child)
                case Finish():
                    housekeeper.finish()
                case unknown:
                    raise TypeError(f"unknown instruction: {unknown!r}")
    except (EOFError, OSError):
        _kill_groups(groups)
    except Exception as error:
        logger.exception(
            "housekeeping process cannot read an instruction of its supervisor: worker %s: %s; it ends",
            housekeeper.options.name,
            error_line(error),
            extra={"worker": housekeeper.options.name, "error": error_line(error)},
        )
    finally:  # in any case: without instructions it would send heartbeats of dead children for ever
        os._exit(EXIT_GRACE)


def _tell_total(options: WorkerOptions, own_slots: Slots) -> None:
    """Count the jobs to drain, for the progress bar: before the children are registered, and so before they begin."""
    own_connection(options.using, "total")
    sessions.limit(statement=TOTAL_SECONDS)
    with suppress(DatabaseError, *DATABASE_ERRORS):  # the bar then shows no total
        own_slots.total = count_total(options)
    connections[options.using].close()


def _kill_groups(groups: dict[UUID, int]) -> None:
    for pid in list(groups.values()):
        kill_group(pid)
