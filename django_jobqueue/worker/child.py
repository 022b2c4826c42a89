"""A child process: claims jobs, runs them in its executor, records how they ended, and hands lanes over."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.db import connections

from .. import carriers
from ..conf import Settings, get_settings
from ..connection_names import name_process
from ..engine.notifications import Listener
from ..engine.workers import seconds_on_timeline
from ..handlers import Handler
from ..log_texts import error_line, error_text, job_label
from ..models import Job
from . import sessions
from .capacity import Capacity
from .claims import HeldClaims, WorkerIdentity
from .console import show_log
from .dispatch import Dispatcher
from .executor import Executor
from .job_log import JobLog
from .memory import resident_megabytes
from .messages import ChildOrder
from .missing_handlers import MissingHandlers
from .options import WorkerOptions
from .outage import Outage, Server
from .pace import HandlerPace
from .polling import REFRESH_SECONDS, Poller
from .prefetch import Prefetcher
from .results import Recorder
from .sessions import DATABASE_ERRORS
from .slots import Slots
from .verification import Verification

logger = logging.getLogger("django_jobqueue.worker")

EXIT_DONE = 74  # it was told to stop, or had no jobs left
EXIT_REPLACE = 75  # it must be replaced: it ran enough jobs, or is too large
EXIT_OVERDUE = 76  # a handler did not stop when its time was used up
EXIT_GRACE = 77  # handlers still ran when the grace period was over
CONTROL_SECONDS = 1.0  # how often the child checks for cancellations and writes progress
WATCH_SECONDS = 0.25


class Child:
    """The loop of a child. It runs in one thread; handlers run in the threads of the executor."""

    def __init__(
        self,
        identity: WorkerIdentity,
        options: WorkerOptions,
        slots: Slots,
        *,
        settings: Settings | None = None,
        handler: Handler[..., Any, Any] | None = None,  # runs all jobs, even those that name another handler
    ) -> None:
        self.identity, self.options, self.slots = identity, options, slots
        self.settings = settings = settings or get_settings()
        self.wake = threading.Event()
        self.listener: Listener | None = None
        self.executor = Executor(
            options.shared_threads,
            slots,
            self.wake,
            identity.using,
            own=options.own,
            own_threads=options.own_threads,
        )
        self.claims = HeldClaims(identity, slots, max_jobs=options.max_jobs)
        self.outage, self.server = Outage(identity.name), Server(identity.using)
        self.verification = Verification(self.claims, self.executor, settings.EXPIRE_GRACE_SECONDS)
        self.log = JobLog(identity.name, options.processes, slots)
        self.missing = MissingHandlers(self.claims, settings, runs_all=handler is not None)
        pace = HandlerPace()
        self.poller = Poller(
            options,
            settings.POLL_SECONDS,
            self.wake,
            one_handler=handler is not None,
            always_whole=handler is not None or self.executor.around is not None,
            refreshed=self.missing.refresh,
        )
        self.dispatcher = Dispatcher(self.claims, self.executor, pace, settings, handler, self.missing)
        self.capacity = Capacity(self.claims, self.executor, pace, options, settings)
        self.prefetcher = Prefetcher(
            self.claims,
            self.poller,
            self.capacity,
            options,
            settings,
            self.wake,
            begin=self.dispatcher.begin,
            begin_groups=self.dispatcher.begin_groups,
            skipped_in=self.missing.skipped_in,
        )
        self.recorder = Recorder(
            self.claims,
            self.executor,
            pace,
            settings,
            options.tags,
            begin=self.dispatcher.begin,
            begin_late=self.dispatcher.begin_late,
            notify_groups=self.poller.notify_groups,
            needs_whole=self.poller.needs_whole,
            may_hand_over=self.poller.may_hand_over,
            skipped=self.missing.skipped,
            own=options.own,
            restarted_since=self.server.restarted_since,
            log=self.log,
        )
        self._exit_code = 0  # set when the child must be replaced
        self._stop_by: float | None = None  # set when it was told to stop: the end of the grace period
        self._stops_now = False  # whether to exit without waiting for running handlers
        self._watch_at = self._control_at = self._verify_at = 0.0

    # --------------------------------------------------------------------------------------------------------- the loop

    def run(self) -> int:
        """Work until told to stop, and return the exit code."""
        self._start()
        while not self._is_over():
            try:
                if self.outage.is_on or not self.server.is_known:
                    self._verify_server()
                busy = self._turn()
            except DATABASE_ERRORS as error:
                self._lose_database(error)
                busy = False
            if not busy:
                self.wake.wait(self._idle_seconds())
            self.wake.clear()
        return self._leave()

    def _turn(self) -> bool:
        """One iteration of the loop. Returns whether the next should follow at once."""
        now = self.slots.turned_at = time.monotonic()
        if now >= self._watch_at:
            self._watch(now)
        if now >= self._control_at:
            self._control(now)
        self.recorder.retry_locked(now)
        began = self._begin_more(now)  # before recording, so that handlers run meanwhile
        recorded = self.recorder.record_due(now)
        if self.claims.is_used_up() and not self._exit_code:
            self._retire("it ran --max-jobs")
        if self.options.drain and self._is_drained(now):
            self.stop_from_signal()
        return began or recorded

    def _begin_more(self, now: float) -> bool:
        if not self._may_begin():
            return False
        if self.claims.is_isolating():
            return self.dispatcher.begin_suspect()
        return self.prefetcher.fill(now)

    def _may_begin(self) -> bool:
        return not self.claims.is_closed and self.verification.stop_by is None

    def _is_drained(self, now: float) -> bool:
        if self.claims.jobs or not self.prefetcher.found_nothing or not self._may_begin():
            return False
        return self.prefetcher.is_empty(now)

    def _is_over(self) -> bool:
        if self._stops_now:
            return True
        if self._stop_by is not None:
            return not self.claims.jobs or time.monotonic() > self._stop_by
        return self._exit_code == EXIT_OVERDUE or (self.claims.is_closed and not self.claims.jobs)

    def _idle_seconds(self) -> float:
        """How long to wait for an event."""
        if self.outage.is_on:
            return self.outage.pause
        if self.executor.results:
            return self.settings.FINISH_SECONDS
        if self.claims.is_closed and not self.claims.jobs:
            return 0.0
        longest = WATCH_SECONDS if self.claims.jobs else CONTROL_SECONDS
        if not self._may_begin() or self.claims.is_isolating():
            return longest  # even if queues are due or jobs wait
        return min(self.prefetcher.seconds_until_next_look(), longest)

    # --------------------------------------------------------------------------------------------------- start and stop

    def _start(self) -> None:
        sessions.limit(statement=sessions.STATEMENT_SECONDS)
        while not self.slots.renewed_at and self._stop_by is None:  # the housekeeping process has not stored its row
            self.wake.wait(0.02)
            self.wake.clear()
        self.executor.start()
        if self.settings.NOTIFY and not self.settings.POOLER:
            self.listener = Listener(self.identity.using, self.poller.notify, self._listener_lost, self.identity.name)
            self.listener.start()

    def stop(self) -> None:
        """Claim no more; running jobs may end within the grace period."""
        self.stop_from_signal()
        self.wake.set()

    def stop_from_signal(self) -> None:
        """The same without waking the loop: the thread that a signal interrupts may have locked the event."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self.options.grace
        self.claims.is_closed = True

    def stop_now(self) -> None:
        """Stop without waiting: running jobs return to the queue when the process has ended."""
        self._stops_now = True
        self.stop()

    def _retire(self, why: str) -> None:
        """Claim no more, and exit when no job is held, so that the child is replaced."""
        logger.info(
            "child is replaced: %s, because %s",
            self.identity.name,
            why,
            extra={"worker": self.identity.name, "why": why},
        )
        self._exit_code = EXIT_REPLACE
        self.claims.is_closed = True

    def _retire_at_once(self, why: str, jobs: Sequence[Job]) -> None:
        """Exit although handlers run, because they do not stop, so that the child is replaced."""
        labels = [job_label(job) for job in jobs]
        logger.error(
            "handler does not stop: child %s, %s: %s; the child is replaced",
            self.identity.name,
            why,
            ", ".join(labels[:3]),
            extra={
                "worker": self.identity.name,
                "why": why,
                "jobs": [str(job.id) for job in jobs[:20]],
                "number": len(labels),
            },
        )
        self._exit_code = EXIT_OVERDUE
        self.claims.is_closed = True

    def _leave(self) -> int:
        """Record results and return jobs that have not begun. Running jobs are recovered after the exit."""
        if self.listener is not None:
            self.listener.stop()
        self.recorder.retry_locked(float("inf"))
        try:
            unbegun = self._withdraw()
            self.recorder.record_all()
            self.log.sum_up(time.monotonic(), at_once=True)
            if unbegun:
                self.prefetcher.give_back(unbegun, "its worker stops")
            if self.options.drain:
                self.missing.log_left()
        except DATABASE_ERRORS as error:
            logger.warning(
                "could not return jobs to the queue: child %s: %s; they are recovered when it has ended",
                self.identity.name,
                error_line(error),
                extra={"worker": self.identity.name, "error": error_text(error)},
            )
            return EXIT_GRACE
        finally:
            self.executor.stop()
            self.prefetcher.close()
            connections[self.identity.using].close()
            carriers.flush()
        if self.claims.is_used_up():
            self._exit_code = self._exit_code or EXIT_REPLACE
        return self._exit_code or (EXIT_GRACE if self.claims.jobs else EXIT_DONE)

    def _withdraw(self) -> list[Job]:
        """All jobs that are claimed and not begun."""
        self.prefetcher.settle()
        return self.dispatcher.withdraw()

    # --------------------------------------------------------------------------------------------- the database is away

    def _lose_database(self, error: Exception) -> None:
        self.outage.begin(error)
        self.executor.outages += 1
        self.claims.require_verification()
        self.prefetcher.verify_prefetched()
        connections[self.identity.using].close()

    def _listener_lost(self) -> None:
        self.executor.outages += 1

    def _verify_server(self) -> None:
        """At the start and after a lost connection: identify the server and verify the claims.

        A standby that was promoted may lack claims that this child holds. And the server may have claims that this
        child does not hold: their answer was lost, or the server lacks their results.
        """
        self.server.identify()
        pause = self.settings.WORKER_UNLOCKED_SECONDS - seconds_on_timeline(using=self.identity.using)
        if pause > 0:
            # Other workers may still run jobs of the same keys, by claims that this server lacks. After the pause they
            # have verified their claims, or have ended their handlers because they lost contact with the database.
            self.capacity.lanes_open_at = time.monotonic() + pause
            logger.warning(
                "standby was promoted: child %s claims no jobs of ordered queues for %.1f s",
                self.identity.name,
                pause,
                extra={"worker": self.identity.name, "seconds": round(pause, 1)},
            )
        if self.outage.is_on:
            self.outage.end(self._verify_claims(time.monotonic(), reconnected=True))
            self.poller.notify("")

    # ------------------------------------------------------------------------------------------------ watching handlers

    def _watch(self, now: float) -> None:
        """Stop handlers whose time is used up, and return jobs that do not begin."""
        self._watch_at = now + WATCH_SECONDS
        overdue = self.executor.overdue(now)
        if overdue:
            self.executor.interrupt_overdue(now)
            unstopped = [job for job in overdue if now > job.deadline + self.settings.EXPIRE_GRACE_SECONDS]
            if unstopped:
                self._retire_at_once("its time is used up", unstopped)
        self._give_back_stale(now)

    def _give_back_stale(self, now: float) -> None:
        """Return claimed jobs to the queue that wait, because the jobs before them take longer than expected."""
        why = "its worker was too busy to begin"
        if waiting := self.dispatcher.withdraw_waiting(now):
            self.prefetcher.give_back(waiting, why)
        if self.claims.is_closed and (prefetched := self.claims.prefetched):
            self.claims.prefetched = []
            self.prefetcher.give_back(prefetched, "its worker stops")
        self.executor.spread(now)
        if self.dispatcher.is_stalled(now):
            self.prefetcher.give_back(self._withdraw(), why)

    def _control(self, now: float) -> None:
        self._control_at = now + CONTROL_SECONDS
        self.recorder.write_progress()
        self.log.sum_up(now)
        if self.claims.jobs or self.executor.running() or self.verification.stop_by or now >= self._verify_at:
            self._verify_at = now + REFRESH_SECONDS
            self._verify_claims(now)
        limit = self.settings.MEMORY_LIMIT_MB
        if limit and not self._exit_code and resident_megabytes() > limit:
            self._retire("it is larger than MEMORY_LIMIT_MB")

    def _verify_claims(self, now: float, *, reconnected: bool = False) -> int:
        """Compare the claims with the database, and return how many jobs were returned to the queue.

        While handlers of lost claims still run, no job is claimed or returned, and the claims are compared more often.
        """
        self.prefetcher.settle()
        given_back = self.verification.compare(now, reconnected=reconnected)
        if self.verification.stop_by is not None:
            self._control_at = now + WATCH_SECONDS
            if self.verification.is_overdue(now):
                self._retire_at_once("its claim was lost", self.verification.abandoned)
        return given_back


@dataclass(frozen=True)
class ChildWork:
    """Run a child process until it stops."""

    identity: WorkerIdentity
    options: WorkerOptions
    slots: Slots
    control: int  # orders of the supervisor

    outlives: ClassVar = False

    @property
    def files(self) -> list[int]:
        return [self.control, self.slots.file]

    def run(self) -> int:
        name_process("runjobs", self.options.name, f"child {self.identity.number(self.options.name)}")
        show_log(self.options)
        child = Child(self.identity, self.options, self.slots)
        signal.signal(signal.SIGTERM, lambda *_: child.stop_from_signal())
        orders = threading.Thread(
            target=_follow_orders, args=(self.control, child), name="jobqueue-control", daemon=True
        )
        orders.start()
        self.slots.exit_code = child.run()
        return self.slots.exit_code


def _follow_orders(control: int, child: Child) -> None:
    """Follow the orders of the supervisor. Exit when it has ended, because other workers recover the jobs."""
    while True:
        order = os.read(control, 1)
        if order == ChildOrder.STOP.value:
            child.stop()
        elif order == ChildOrder.STOP_NOW.value:
            child.stop_now()
        else:
            os._exit(1)
