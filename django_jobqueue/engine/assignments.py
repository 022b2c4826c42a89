"""The thread behind a stream: assigns jobs to it as long as it has capacity, and frees that when they end.

How much of its capacity is taken, the database says: an attempt counts until its row shows that it has ended, whoever
ended it. What verbs of this process end is looked at once, the rest at the next poll.
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
from ..log_texts import error_line
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
    """Who streams what, and how much at once."""

    worker: str
    queue: str | None  # none: all of them
    tags: list[str]
    capacity: int
    poll_seconds: float
    using: str


class Fetch(Protocol):
    """How jobs are claimed: as :func:`django_jobqueue.services.fetch` does it."""

    def __call__(
        self, queue: str, limit: int, *, tags: list[str], worker: str, incarnation: UUID, using: str
    ) -> list[Job]: ...


class Assigner(threading.Thread):
    """Assigns jobs to one stream. ``ready`` is called, in this thread, when some were, and when it has ended."""

    def __init__(self, terms: Terms, fetch: Fetch, ready: Callable[[], None]) -> None:
        super().__init__(name="jobqueue-stream", daemon=True)
        self.terms, self.fetch, self.ready = terms, fetch, ready
        self.incarnation = uuid7()
        self.held: dict[UUID, Job] = {}  # what counts against the capacity
        self.ending = threading.Event()  # nothing more is delivered
        self.exiting = False  # and nobody will finish what was
        self.error: Exception | None = None  # what ended it
        self.failure: Exception | None = None  # what kept it from giving back the undelivered
        self._undelivered: dict[UUID, Job] = {}
        self._lock = threading.RLock()
        self._bell = threading.Event()
        self._woken: set[str] = {""}  # the queues to look at; the empty name means all
        self._look_at_held = False
        self._polled_at = self._beat_at = 0.0

    # ------------------------------------------------------------------------------------- called by other threads

    def take(self) -> list[Job]:
        """All that is assigned and not delivered: by that it is."""
        with self._lock:
            if self.ending.is_set():
                return []
            jobs, self._undelivered = list(self._undelivered.values()), {}
            return jobs

    def end(self) -> None:
        """Assign no more and give back what is not delivered; :meth:`join` waits for that."""
        self.ending.set()
        self._bell.set()

    def free(self) -> int:
        return self.terms.capacity - len(self.held)

    def woken(self, queue: str) -> None:
        """There may be something in this queue; of no use to a stream that is full."""
        if self.free() > 0 and (not queue or self.terms.queue in (None, queue)):
            self._woken.add(queue)
            self._bell.set()

    def ended(self) -> None:
        """Something that this stream holds has ended."""
        self._look_at_held = True
        self._bell.set()

    # -------------------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        own_connection(self.terms.using)
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
                self._woken.add("")  # else it has been told of all there is
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
                continue  # of all queues, one was just deleted
            if jobs:
                self._hold(jobs)

    def _queues(self) -> list[str]:
        """Those with the oldest work first."""
        if self.terms.queue is not None:
            return [self.terms.queue]
        return [name for (name,) in rows(self.terms.using, sql.fetch.QUEUES_BY_AGE)]

    def _hold(self, jobs: list[Job]) -> None:
        found = {job.id: job for job in jobs}
        announcements.hold(found, self.ended)  # before anybody can end them
        with self._lock:
            self.held |= found
            self._undelivered |= found
        self.ready()

    def _free_ended(self) -> bool:
        """Free what the places of ended attempts took; whether that was anything."""
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

    # ---------------------------------------------------------------------------------------------- signs of life

    def _register(self) -> None:
        terms = self.terms
        queues = [] if terms.queue is None else [terms.queue]
        row = Worker(id=self.incarnation, name=terms.worker, host=socket.gethostname()[:255], pid=os.getpid(),
                     queues=queues, tags=terms.tags, capacity=terms.capacity)  # fmt: skip
        workers.register(row, using=terms.using)
        self._beat_at = time.monotonic()

    def _beat(self, now: float) -> None:
        using = self.terms.using
        found = workers.beat({self.incarnation: "{}"}, using=using)
        if self.incarnation in found.stopping:
            self.end()
        elif self.incarnation not in found.alive:  # it was silent for too long and has been given up
            self.incarnation = uuid7()
            self._register()
            self._look_at_held = True
        workers.beat_jobs([self.terms.worker], [self.incarnation], using=using)
        self._beat_at = now

    def _leave(self) -> None:
        """Give back what was not delivered; what was is still its consumer's, unless the process ends with it."""
        terms = self.terms
        with self._lock:
            delivered = self.held.keys() - self._undelivered.keys()
            announcements.let_go(self.held, self.ended)
        try:
            if self.error is not None:
                connections[terms.using].close()  # whatever state it is in
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
                extra={"worker": terms.worker, "error": str(error).strip()},
            )
        finally:
            with suppress(DatabaseError):
                connections[terms.using].close()


def _unended(held: list[Job], using: str) -> set[UUID]:
    """Those of these attempts that still take a place.

    A cancelled one keeps its place if it may still run: its cancellation was acknowledged without knowing the job.
    """
    queues = {job.queue_id for job in held}
    found = Job.objects.using(using).filter(queue__in=queues, pk__in=[job.id for job in held])
    claims = {job.claim for job in held}
    alive, unknown = set(), set()
    for id, attempt, number, state in found.values_list("pk", "attempt", "claim_number", "state"):
        if Claim(id, attempt, number) not in claims:
            continue
        if state in RUNNING:
            alive.add(id)
        elif state == JobState.UNKNOWN_STOPPED:
            unknown.add(id)
    if unknown:
        outcomes = found.filter(pk__in=unknown).values_list("pk", "attempts__-1__outcome")
        alive |= {id for id, outcome in outcomes if outcome == "cancelled"}
    return alive
