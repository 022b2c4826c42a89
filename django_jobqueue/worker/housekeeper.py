"""The process beside the children: says that they live, takes back what a dead one left, keeps schedules and order.

It is a process of its own, because a handler that hangs with the interpreter's lock must not keep its child from
being alive, and because the supervisor forks and so must have no threads.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from django.db import OperationalError, connections

from .. import __version__
from ..conf import get_settings
from ..engine import workers
from ..engine.databases import own_connection
from ..engine.recovery import has_lost_workers
from ..expressions import StatementTimestamp
from ..maintenance import maintain
from ..models import Worker
from ..services import recover_lost, release_pending
from ..services.schedules import send_due
from . import sessions
from .memory import megabytes_of
from .options import WorkerOptions
from .sessions import DATABASE_ERRORS
from .slots import Slots

logger = logging.getLogger("django_jobqueue.worker")

RECOVER_SECONDS = 1.0
STATEMENT_SECONDS = 60.0


@dataclass
class Kept:
    """A child as the keeper knows it."""

    incarnation: UUID
    name: str
    pid: int
    slots: Slots
    queues: list[str]
    registered: bool = False


@dataclass(frozen=True)
class Death:
    """How a child ended, and what it was at."""

    incarnation: UUID
    name: str
    how: str
    crashed: list[workers.Running] = field(default_factory=list)
    overdue: list[workers.Running] = field(default_factory=list)


class Keeper:
    """Renews the rows of its children, and tells whoever runs them what it found.

    ``lost``: the others have given this child up. ``asked``: somebody asked the worker to stop. ``buried``: what a dead
    child left is taken back. ``turned``: its loop has come round.
    """

    def __init__(
        self,
        options: WorkerOptions,
        *,
        lost: Callable[[UUID], None],
        asked: Callable[[], None],
        buried: Callable[[UUID], None],
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        self.options, self.using = options, options.using
        self.settings = get_settings()
        self.lost, self.asked, self.buried, self.turned = lost, asked, buried, turned
        self.children: dict[UUID, Kept] = {}
        self.deaths: list[Death] = []
        self.lock = threading.Lock()
        self.wake = threading.Event()
        self.stopping = threading.Event()
        self._away = False
        self._said_at = float("-inf")
        self._connection: Any = None  # the session that holds the locks,
        self._locked: set[UUID] = set()  # and of whom
        self.renewed = 0.0
        self._told_to_stop = False
        self._clock = threading.Lock()
        self._ahead: float | None = None  # the database's clock before ours
        self._trust_at = 0.0

    # ------------------------------------------------------------------------------------------ told by the runner

    def add(self, child: Kept) -> None:
        with self.lock:
            self.children[child.incarnation] = child
        self.wake.set()

    def bury(self, death: Death) -> None:
        with self.lock:
            self.children.pop(death.incarnation, None)
            self.deaths.append(death)
        self.wake.set()

    def finish(self) -> None:
        """Leave when all deaths are written down."""
        self.stopping.set()
        self.wake.set()

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Beat until told to leave, and while something is left to be written down."""
        own_connection(self.using)
        for work in self._works():
            threading.Thread(target=self._housekeep, args=work, name=f"jobqueue-{work[0]}", daemon=True).start()
        fence = self.settings.WORKER_FENCE_SECONDS
        sessions.limit(statement=fence / 2, lock=fence / 5)
        pause = self.settings.WORKER_HEARTBEAT_SECONDS
        leave_by = float("inf")
        while True:
            self.turned()
            if self.stopping.is_set():
                leave_by = min(leave_by, time.monotonic() + 5)
                if time.monotonic() > leave_by or not self.deaths:
                    break
            try:
                self.turn()
                pause = self.settings.WORKER_HEARTBEAT_SECONDS
                if self._away:
                    self._away = False
                    logger.info("database is back", extra={"worker": self.options.name})
            except DATABASE_ERRORS as error:
                pause = self._lose(error)
            self.wake.wait(0.05 if self.stopping.is_set() or self.deaths else pause)
            self.wake.clear()
        connections[self.using].close()

    def _lose(self, error: Exception) -> float:
        self._away = True
        if time.monotonic() - self._said_at > 5:
            self._said_at = time.monotonic()
            logger.warning("database lost; retrying", extra={"worker": self.options.name, "error": str(error).strip()})
        connections[self.using].close()
        return min(0.5, self.settings.WORKER_HEARTBEAT_SECONDS) * random.uniform(0.5, 1)

    def turn(self) -> None:
        """Register new children, beat for all, and take back what dead ones left."""
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
                child.slots.renewed = began
        self.renewed = began
        # Whoever has locked the table of jobs must not keep us from saying that the children live.
        with _unless_locked(), sessions.limited(self.using):
            workers.beat_jobs(
                [child.name for child in children], [child.incarnation for child in children], using=self.using
            )
        for death in list(self.deaths):
            with _unless_locked():
                self._bury_one(death)

    def _bury_one(self, death: Death) -> None:
        with sessions.limited(self.using):
            returned = workers.recover_dead(
                death.name, death.incarnation, death.how, crashed=death.crashed, overdue=death.overdue, using=self.using
            )
        if returned:
            logger.info("jobs of a child went back", extra={"worker": death.name, "how": death.how, "jobs": returned})
        if death.incarnation in self._locked and not self._is_new_session():
            workers.drop_session_lock(death.incarnation, using=self.using)
        self._locked.discard(death.incarnation)
        with self.lock:
            self.deaths.remove(death)
        self.buried(death.incarnation)

    def _register(self, child: Kept) -> None:
        row = Worker(
            pk=child.incarnation,
            name=child.name,
            host=socket.gethostname()[:255],
            pid=child.pid,
            queues=child.queues,
            tags=list(self.options.tags),
            capacity=self.options.concurrency,
            version=__version__,
            has_session_lock=not self.settings.POOLER,
            unlocked_seconds=self.settings.WORKER_UNLOCKED_SECONDS,
            lost_seconds=self.settings.WORKER_LOST_SECONDS,
            stop_grace_seconds=self.settings.STOP_GRACE_SECONDS,
        )
        ours = [*self.children, *(death.incarnation for death in self.deaths)]
        others = Worker.objects.using(self.using).filter(name=child.name, stopped_at=None).exclude(pk__in=ours)
        if others.filter(heartbeat_at__gt=_recently()).exists():
            logger.warning("name reused: another worker is called so", extra={"worker": child.name})
        workers.register(row, using=self.using)
        child.registered = True

    def _is_new_session(self) -> bool:
        return self._connection is None or connections[self.using].connection is not self._connection

    def _hold_locks(self, children: list[Kept]) -> None:
        if self.settings.POOLER:
            return
        connections[self.using].ensure_connection()
        if self._is_new_session():
            self._connection, self._locked = connections[self.using].connection, set()
        fresh = {child.incarnation for child in children} - self._locked
        self._locked |= workers.take_session_locks(fresh, using=self.using)

    def _beat(self, children: list[Kept]) -> None:
        found = workers.beat({child.incarnation: _stats(child) for child in children}, using=self.using)
        for child in children:
            if child.incarnation not in found.alive:
                with self.lock:
                    self.children.pop(child.incarnation, None)
                self.lost(child.incarnation)
        if found.stopping and not self._told_to_stop:
            self._told_to_stop = True
            self.asked()

    # --------------------------------------------------------------------------------------------- housekeeping

    def _works(self) -> Iterator[tuple[str, float, Callable[[], object]]]:
        """What is done besides, how often; each guarded so that of all workers one does it at a time."""
        yield "recovery", RECOVER_SECONDS, self._recover
        yield "maintenance", self.settings.MONITOR_SECONDS, self._maintain
        if self.options.schedules:
            yield "schedules", self.settings.SCHEDULE_SECONDS, lambda: send_due(using=self.using)

    def _housekeep(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        """One of them, in a thread of its own: a long cleanup must not keep schedules waiting."""
        own_connection(self.using)
        sessions.limit(statement=STATEMENT_SECONDS)
        broken = False
        while not self.stopping.is_set():
            try:
                work()
                broken = False
            except DATABASE_ERRORS as error:
                connections[self.using].close()
                if not broken and not self._away:
                    logger.warning("%s failed; trying again", name, extra={"error": str(error).strip()})
                broken = True
            except Exception:  # a bug in one of them must not end it for good
                if not broken:
                    logger.exception("%s failed; trying again", name)
                broken = True
            self.stopping.wait(seconds * random.uniform(0.9, 1.1))
        connections[self.using].close()

    def _maintain(self) -> None:
        if not self._clock_jumped():
            maintain(every=self.settings.MONITOR_SECONDS / 2, using=self.using)

    def _recover(self) -> None:
        with sessions.limited(self.using):
            release_pending(using=self.using)
        if self._clock_jumped():
            return
        with sessions.limited(self.using):
            gone = has_lost_workers(using=self.using)
        if gone:
            for queue, number in recover_lost(using=self.using).items():
                logger.warning("jobs of a lost worker were recovered", extra={"queue": queue, "jobs": number})

    def _clock_jumped(self) -> bool:
        """Whether the database's clock went ahead: then all workers look silent until their next heartbeats.

        The same when that is not known, because we have only just begun, and when a standby was promoted: it may lack
        heartbeats of workers whose handlers still run.
        """
        if workers.seconds_on_timeline(using=self.using) < self.settings.WORKER_UNLOCKED_SECONDS:
            return True
        with self._clock:
            return self._look_at_clock()

    def _look_at_clock(self) -> bool:
        began = time.monotonic()
        ahead = workers.clock(using=self.using) - began
        before, self._ahead = self._ahead, ahead
        jumped = 0.0 if before is None else ahead - before
        if before is None or jumped > 1 + (time.monotonic() - began):
            self._trust_at = began + 3 * self.settings.WORKER_HEARTBEAT_SECONDS + RECOVER_SECONDS
        if jumped > 1 + (time.monotonic() - began):
            logger.warning("the database's clock went ahead", extra={"seconds": round(jumped, 1)})
            with self.lock:
                children = list(self.children.values())
            names, incarnations = [child.name for child in children], [child.incarnation for child in children]
            workers.move_deadlines(names, incarnations, jumped, using=self.using)
        return began < self._trust_at


@contextmanager
def _unless_locked() -> Iterator[None]:
    """What somebody has locked is tried again at the next turn."""
    try:
        yield
    except workers.StillLocked:
        pass
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled):
            raise


def _stats(child: Kept) -> str:
    done, failed, held = child.slots.jobs
    return json.dumps({"done": done, "failed": failed, "held": held, "memory_mb": megabytes_of(child.pid)})


def _recently() -> Any:
    return StatementTimestamp() - timedelta(seconds=get_settings().WORKER_UNLOCKED_SECONDS)
