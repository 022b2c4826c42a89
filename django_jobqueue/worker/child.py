"""A child process: claims jobs, has its executor run them, writes down how they ended, and hands lanes over."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any
from uuid import UUID

from django.db import connections

from .. import carriers
from ..conf import Settings, get_settings
from ..engine.notifications import Listener
from ..engine.workers import claims_of, give_back_claims, give_back_unheld, seconds_on_timeline, server_identity
from ..handlers import Handler
from ..models import Job
from ..states import JobState
from . import sessions
from .executor import Executor
from .memory import resident_megabytes
from .options import WorkerOptions
from .prefetch import REFRESH_SECONDS, Line
from .results import Recorder
from .sessions import DATABASE_ERRORS
from .slots import Slots

logger = logging.getLogger("django_jobqueue.worker")

EXIT_DONE = 74  # the end of a child that was told to stop, or had nothing left to do
EXIT_REPLACE = 75  # end of a child that wants a successor: it ran enough jobs, or is too large
EXIT_OVERDUE = 76  # a handler did not stop when its time was used up
EXIT_GRACE = 77  # handlers still ran when the grace period was over
CONTROL_SECONDS = 1.0  # how often cancellations are looked for and progress is written
WATCH_SECONDS = 0.25
FLAPPING_SECONDS = 5.0  # a database that comes and goes within that time is told of once


class Child:
    """The loop of one child. Everything here runs in one thread; handlers run in the executor's."""

    def __init__(
        self,
        options: WorkerOptions,
        name: str,
        incarnation: UUID,
        slots: Slots,
        handler: Handler[..., Any] | None = None,
    ) -> None:
        self.options, self.name, self.incarnation, self.slots = options, name, incarnation, slots
        self.handler = handler  # of all jobs, whatever handler they name
        self.using = options.using
        self.settings: Settings = get_settings()
        self.wake = threading.Event()
        self.executor = Executor(options.concurrency, slots, self.wake, self.using)
        self.listener: Listener | None = None
        self.stopping = False  # no more jobs are claimed
        self.returning = False  # and those that run go back at once
        self.line = Line(self)
        self.held: dict[UUID, Job] = {}
        self.asynchronous: set[UUID] = set()  # those of them that run in the event loop
        self.retired = 0  # the exit code of a child that wants a successor
        self._stop_by = 0.0
        self._lost_at: float | None = None
        self._pause = 0.05
        self._said_at = self._back_at = float("-inf")
        self._said = False
        self._control_at = self._watch_at = self._orphans_at = 0.0
        self._end_lost_by: float | None = None  # when handlers of lost claims must have ended
        self._server: tuple[Any, ...] | None = None  # which server we talk to
        self._restarted_at = float("-inf")  # when we last saw that it is another, or was started again
        self.recorder = Recorder(self)

    # ------------------------------------------------------------------------------------------------- the loop

    def run(self) -> int:
        """Work until told to stop, and return the exit code."""
        sessions.limit(statement=sessions.STATEMENT_SECONDS)
        self._wait_for_row()
        self.executor.start()
        if self.settings.NOTIFY and not self.settings.POOLER:
            self.listener = Listener(self.using, self.line.woken, self._listener_lost)
            self.listener.start()
        while not self._is_over():
            try:
                if self._lost_at is not None or self._server is None:
                    self._verify()
                busy = self._turn()
            except DATABASE_ERRORS as error:
                self._lose(error)
                busy = False
            if not busy:
                self.wake.wait(self._patience())
            self.wake.clear()
        return self._leave()

    def stop(self) -> None:
        """Claim no more; what runs may end within the grace period."""
        self.stop_soon()
        self.wake.set()

    def stop_soon(self) -> None:
        """The same from a signal handler, which may wake nobody: the thread it interrupts may hold that very lock."""
        self._stop_by = self._stop_by or time.monotonic() + self.options.grace
        self.stopping = True

    def return_all(self) -> None:
        """Stop at once: what runs goes back."""
        self.stop()
        self.returning = True
        self.wake.set()

    def _wait_for_row(self) -> None:
        while not self.slots.renewed and not self.stopping:
            self.wake.wait(0.02)
            self.wake.clear()

    def _is_over(self) -> bool:
        if self.returning:
            return True
        if self.stopping:
            return not self.held or time.monotonic() > self._stop_by
        return self.retired != 0 and (self.retired == EXIT_OVERDUE or not self.held)

    def _turn(self) -> bool:
        """One round; whether another should follow at once."""
        now = self.slots.turned = time.monotonic()
        if now >= self._watch_at:
            self._watch(now)
        if now >= self._control_at:
            self._control(now)
        self.recorder.take_up(now)
        # Fetching goes first, so that handlers have something to do while results are written.
        fetched = not (self.stopping or self.retired or self._end_lost_by) and self.line.fill(now)
        finished = self.recorder.finish(now)
        if self.options.drain and not self.held and self.line.is_drained:
            self.stopping = self.line.is_empty(now)
        return bool(finished or fetched)

    def _patience(self) -> float:
        """For how long nothing will happen by itself."""
        if self._lost_at is not None:
            return self._pause
        if self.executor.results:
            return self.settings.FINISH_SECONDS
        if self.stopping and not self.held:
            return 0.0
        return min(self.line.patience(), WATCH_SECONDS if self.held else CONTROL_SECONDS)

    def _leave(self) -> int:
        """Write down what has ended, give back what was not begun; what still runs goes back when we are gone."""
        if self.listener is not None:
            self.listener.stop()
        unbegun: set[UUID] = set()
        self.recorder.take_up(float("inf"))
        try:
            unbegun = {job.id for job in self.line.take_back()}
            while self.executor.results:
                self.recorder.record([self.executor.results.popleft() for _ in range(len(self.executor.results))])
            if unbegun:
                begun = [job for id, job in self.held.items() if id not in unbegun]
                give_back_unheld(self.name, self.incarnation, begun, "its worker stops", using=self.using)
        except DATABASE_ERRORS as error:
            logger.warning("could not give jobs back", extra={"worker": self.name, "error": str(error).strip()})
            return EXIT_GRACE
        finally:
            self.executor.stop()
            self.line.close()
            connections[self.using].close()
            carriers.flush()
        if self.held.keys() - unbegun:
            return self.retired or EXIT_GRACE
        return self.retired or EXIT_DONE

    # ---------------------------------------------------------------------------------------- the database is away

    def _lose(self, error: Exception) -> None:
        now = time.monotonic()
        self.executor.outages += 1
        if self._lost_at is None:
            if now - self._back_at > FLAPPING_SECONDS:
                self._pause = 0.05
            self._lost_at = now
            if now - self._said_at > FLAPPING_SECONDS:
                self._said_at, self._said = now, True
                facts = {"worker": self.name, "error": str(error).strip()[:500]}
                logger.warning("database lost; retrying", extra=facts)
        self._pause = min(self._pause * 2, 1.0) * random.uniform(0.75, 1)
        for job in self.held.values():
            job.begin_by = 0.0  # what has not begun is verified before it does: its claim may be lost
        self.line.distrust_arrived()
        connections[self.using].close()

    def _listener_lost(self) -> None:
        self.executor.outages += 1

    def _verify(self) -> None:
        """At the start and after a lost connection: which server this is, and which claims it knows.

        It may lack claims that we hold, if it is a standby that was promoted. And it may have claims that we do not
        know, because their answer never came, or because it lacks their results.
        """
        self._look_at_server()
        pause = self.settings.WORKER_UNLOCKED_SECONDS - seconds_on_timeline(using=self.using)
        if pause > 0:
            # Other workers may still run jobs of the same keys by claims that this server lacks. By then they have
            # verified their claims, or have ended their handlers because they lost contact.
            self.line.lanes_open_at = time.monotonic() + pause
            facts = {"worker": self.name, "seconds": round(pause, 1)}
            logger.warning("a standby was promoted; ordered queues wait", extra=facts)
        if self._lost_at is None:
            return
        returned = self._compare_with_database(time.monotonic(), reconnected=True)
        self._back_at = time.monotonic()
        if self._said:
            self._said = False
            away = round(self._back_at - self._lost_at, 1)
            logger.info("database is back", extra={"worker": self.name, "seconds": away, "returned": returned})
        self._lost_at = None
        self.line.woken("")

    def _look_at_server(self) -> None:
        """Remember when the server was seen to be another than before, or to have been started again."""
        before, self._server = self._server, server_identity(using=self.using)
        if before not in (None, self._server):
            self._restarted_at = time.monotonic()

    def restarted_since(self, moment: float) -> bool:
        """Whether the server has been started or replaced since then, as far as can be seen from here."""
        self._look_at_server()
        return self._restarted_at >= moment

    # ------------------------------------------------------------------------------------- looking after handlers

    def _watch(self, now: float) -> None:
        """Stop handlers whose time is used up, and leave if they do not stop; give back what nobody begins."""
        self._watch_at = now + WATCH_SECONDS
        overdue = self.executor.overdue(now)
        if overdue:
            self.executor.ask_to_stop(now)
            patience = self.settings.EXPIRE_GRACE_SECONDS
            if any(now > job.deadline + patience for job in overdue):
                logger.error("a handler does not stop; its process is replaced", extra={"worker": self.name})
                self.retired = EXIT_OVERDUE
        self.line.return_stale(now)

    def _control(self, now: float) -> None:
        self._control_at = now + CONTROL_SECONDS
        self.recorder.write_progress()
        if self.held or self.executor.running() or self._end_lost_by or now >= self._orphans_at:
            self._orphans_at = now + REFRESH_SECONDS
            self._compare_with_database(now)
        limit = self.settings.MEMORY_LIMIT_MB
        if limit and not self.retired and resident_megabytes() > limit:
            self.retire("it is larger than MEMORY_LIMIT_MB")

    def _compare_with_database(self, now: float, *, reconnected: bool = False) -> int:
        """Stop handlers whose job was cancelled or whose claim was lost, and return what is ours only there.

        In this order: returned before a lost handler has ended, a job could run beside its successor, which was handed
        over by a claim that this server lacks. Returns how many jobs were returned.
        """
        self.line.settle()
        claims = claims_of(self.name, self.incarnation, using=self.using)
        held = {job.claim: job for job in self.held.values()}
        for lost in held.keys() - claims.keys():
            held[lost].begin_by = 0.0
        running = self.executor.running()
        cancelled = {claim for claim, state in claims.items() if state == JobState.CANCELLING}
        self.executor.cancel(job for job in running if job.claim in cancelled)
        abandoned = [job for job in running if job.claim not in claims]
        self.executor.abandon(abandoned)
        unheld = claims.keys() - held.keys()
        if abandoned and (unheld or reconnected or self._end_lost_by):
            self._wait_for_lost(now)
            return 0
        self._end_lost_by = None
        why = "its claim was not confirmed"
        return give_back_claims(self.name, self.incarnation, unheld, why, using=self.using)

    def _wait_for_lost(self, now: float) -> None:
        """Until the handlers of lost claims have ended nothing is fetched or returned; then the process is replaced."""
        self._end_lost_by = self._end_lost_by or now + self.settings.EXPIRE_GRACE_SECONDS
        self._control_at = now + WATCH_SECONDS
        if now > self._end_lost_by:
            logger.error("handlers of lost claims do not stop; their process is replaced", extra={"worker": self.name})
            self.retired = EXIT_OVERDUE

    def retire(self, why: str) -> None:
        """Claim no more, and make room for a successor when nothing is held."""
        logger.info("a child is replaced", extra={"worker": self.name, "why": why})
        self.retired = EXIT_REPLACE
