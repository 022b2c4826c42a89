"""The thread behind a stream: it assigns jobs while the stream has capacity, and frees capacity when they end.

The database decides how much capacity is used: an attempt counts until its row shows that it has ended, in whatever
way. Attempts that verbs of this process end are checked at once, others at the next poll.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from django.db import DatabaseError, connections

from ..claims import Claim
from ..conf import get_settings
from ..exceptions import QueueNotFound
from ..identifiers import uuid7
from ..log_texts import error_line, error_text
from ..models import Job, Worker
from ..states import RUNNING, JobState
from . import announcements, sql, workers
from .databases import rows
from .notifications import hears, subscribed
from .pools import own_connection

logger = logging.getLogger("django_jobqueue")

CANCELLED = "Cancelled: its stream ended before it was delivered."


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of a stream: its worker, which jobs it gets, and how many at once."""

    worker: str
    queue: str | None  # None: all queues
    tags: list[str]
    capacity: int
    poll_seconds: float
    using: str


class Fetch(Protocol):
    """The type of :func:`django_jobqueue.services.fetch`, which claims the jobs."""

    def __call__(
        self, queue: str, limit: int, *, tags: list[str], worker: str, incarnation: UUID, using: str
    ) -> list[Job]: ...


class Assigner(threading.Thread):
    """Assigns jobs to one stream. It calls ``ready``, in this thread, after it assigned jobs and when it has ended."""

    def __init__(self, terms: Terms, fetch: Fetch, ready: Callable[[], None]) -> None:
        super().__init__(name="jobqueue-stream", daemon=True)
        self.terms, self.fetch, self.ready = terms, fetch, ready
        self.incarnation = uuid7()
        self.held: dict[UUID, Job] = {}  # the jobs that count against the capacity
        self.ending = threading.Event()  # set when no more jobs are delivered
        self.exiting = False  # whether the process exits, so that delivered jobs will not be finished
        self.error: Exception | None = None  # the error that ended the stream
        self.failure: Exception | None = None  # the error that kept undelivered jobs from being returned
        self._undelivered: dict[UUID, Job] = {}
        self._lock = threading.RLock()
        self._bell = threading.Event()
        self._woken: set[str] = {""}  # the queues to look at; the empty name means all
        self._look_at_held = False
        self._polled_at = self._beat_at = 0.0

    # ------------------------------------------------------------------------------------- called by other threads

    def take(self) -> list[Job]:
        """Return all assigned jobs that are not delivered yet; they count as delivered from now on."""
        with self._lock:
            if self.ending.is_set():
                return []
            jobs, self._undelivered = list(self._undelivered.values()), {}
            return jobs

    def end(self) -> None:
        """Assign no more jobs, and return the undelivered ones to the queue; :meth:`join` waits for that."""
        self.ending.set()
        self._bell.set()

    def free(self) -> int:
        return self.terms.capacity - len(self.held)

    def woken(self, queue: str) -> None:
        """This queue may have fetchable jobs; ignored while the stream is full."""
        if self.free() > 0 and (not queue or self.terms.queue in (None, queue)):
            self._woken.add(queue)
            self._bell.set()

    def ended(self) -> None:
        """A job that this stream holds has ended."""
        self._look_at_held = True
        self._bell.set()

    # -------------------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        own_connection(self.terms.using, "stream")
        try:
            self._register()
            with subscribed(self.terms.using, self.woken):
                while not self.ending.is_set():
                    self._turn()
                    self._bell.wait(min(self.terms.poll_seconds, get_settings().WORKER_HEARTBEAT_SECONDS))
                    self._bell.clear()
        except Exception as error:
            if not self.ending.is_set():
                self.error = error
        finally:
            self.ending.set()
            self._leave()
            self.ready()

    def _turn(self) -> None:
        now = time.monotonic()
        if now - self._beat_at >= get_settings().WORKER_HEARTBEAT_SECONDS:
            self._beat(now)
        if now - self._polled_at >= self.terms.poll_seconds:
            self._polled_at = now
            self._woken.add("")
            self._look_at_held = True
        self._assign_woken()
        was_full = self.free() < 1
        if self._look_at_held or was_full:
            self._look_at_held = False
            if self._free_ended() and (was_full or not hears()):
                self._woken.add("")  # otherwise notifications have announced all jobs
                self._assign_woken()

    def _assign_woken(self) -> None:
        while self._woken and self.free() > 0 and not self.ending.is_set():
            self._assign(self._woken.pop())

    def _assign(self, woken: str) -> None:
        for queue in [woken] if woken else self._queues():
            if self.free() < 1 or self.ending.is_set():
                return
            try:
                jobs = self.fetch(queue, self.free(), tags=self.terms.tags, worker=self.terms.worker,
                                  incarnation=self.incarnation, using=self.terms.using)  # fmt: skip
            except QueueNotFound:
                if self.terms.queue is not None:
                    raise
                continue  # the stream reads all queues, and this one was deleted meanwhile
            if jobs:
                self._hold(jobs)

    def _queues(self) -> list[str]:
        """The queues to fetch from, those with the oldest jobs first."""
        if self.terms.queue is not None:
            return [self.terms.queue]
        return [name for (name,) in rows(self.terms.using, sql.fetch.QUEUES_BY_AGE)]

    def _hold(self, jobs: list[Job]) -> None:
        assigned = {job.id: job for job in jobs}
        announcements.hold(assigned, self.ended)  # before they are delivered and can end
        with self._lock:
            self.held |= assigned
            self._undelivered |= assigned
        self.ready()

    def _free_ended(self) -> bool:
        """Free the capacity that ended attempts used; return whether there were any."""
        held = list(self.held.values())
        if not held:
            return False
        alive = _unended(held, self.terms.using)
        gone = [job.id for job in held if job.id not in alive]
        with self._lock:
            for id in gone:
                del self.held[id]
                self._undelivered.pop(id, None)
        announcements.let_go(gone, self.ended)
        return bool(gone)

    # ------------------------------------------------------------------------------------------------- heartbeats

    def _register(self) -> None:
        terms = self.terms
        queues = [] if terms.queue is None else [terms.queue]
        row = Worker(id=self.incarnation, name=terms.worker, host=socket.gethostname()[:255], pid=os.getpid(),
                     queues=queues, tags=terms.tags, capacity=terms.capacity)  # fmt: skip
        workers.register(row, using=terms.using)
        self._beat_at = time.monotonic()

    def _beat(self, now: float) -> None:
        using = self.terms.using
        beat = workers.beat({self.incarnation: "{}"}, using=using)
        if self.incarnation in beat.stopping:
            self.end()
        elif self.incarnation not in beat.alive:  # its heartbeat was too old, and it was declared lost
            self.incarnation = uuid7()
            self._register()
            self._look_at_held = True
        workers.beat_jobs([self.terms.worker], [self.incarnation], using=using)
        self._beat_at = now

    def _leave(self) -> None:
        """Return undelivered jobs to the queue; the consumer keeps delivered ones, unless the process exits too."""
        terms = self.terms
        with self._lock:
            delivered = self.held.keys() - self._undelivered.keys()
            announcements.let_go(self.held, self.ended)
        try:
            if self.error is not None:
                connections[terms.using].close()  # the error may have left it unusable
            kept = [self.held[id] for id in delivered]
            workers.give_back_unheld(terms.worker, self.incarnation, kept, CANCELLED, using=terms.using)
            if self.exiting and delivered:
                workers.has_ended(self.incarnation, "its process ended", using=terms.using)
            else:
                Worker.objects.using(terms.using).filter(pk=self.incarnation).delete()
        except Exception as error:
            self.failure = error
            logger.warning(
                "could not return jobs to the queue: worker %s: %s; they are recovered when its heartbeat is too old",
                terms.worker,
                error_line(error),
                extra={"worker": terms.worker, "error": error_text(error)},
            )
        finally:
            with suppress(DatabaseError):
                connections[terms.using].close()


def _unended(held: list[Job], using: str) -> set[UUID]:
    """The ids of these jobs that still count against the capacity.

    A cancelled job counts if its handler may still run: the worker that acknowledged the cancellation did not run it.
    """
    queues = {job.queue_id for job in held}
    rows_of_held = Job.objects.using(using).filter(queue__in=queues, pk__in=[job.id for job in held])
    claims = {job.claim for job in held}
    alive, unknown = set(), set()
    for id, attempt, number, state in rows_of_held.values_list("pk", "attempt", "claim_number", "state"):
        if Claim(id, attempt, number) not in claims:
            continue
        if state in RUNNING:
            alive.add(id)
        elif state == JobState.UNKNOWN_STOPPED:
            unknown.add(id)
    if unknown:
        outcomes = rows_of_held.filter(pk__in=unknown).values_list("pk", "attempts__-1__outcome")
        alive |= {id for id, outcome in outcomes if outcome == "cancelled"}
    return alive
