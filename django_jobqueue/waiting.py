"""Waiting for the results of jobs: one thread of the process polls for all jobs that any thread waits for.

A job that ends sends no notification, because that would make every finish dearer for the few jobs that are waited for.
So the poller looks again after a tenth of the time waited so far, and one query asks for all jobs of a database.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections
from django.db.models import BigIntegerField, Func, TextField, Value

from .exceptions import CannotWait, JobCancelled, JobFailed, JobNotFound, WaitTimeout
from .models import Job
from .options import YEAR, check_seconds
from .states import DEAD, FINAL, JobState

SHORTEST, LONGEST = 0.02, 1.0  # seconds between two polls
PART = 0.1  # of the time waited so far, until the next poll
OUTAGE_SECONDS = 30.0  # how long the database may be gone before those who wait are told

CURRENT_XID = Func(template="pg_current_xact_id_if_assigned()::text::bigint", output_field=BigIntegerField(null=True))
ISOLATION = Func(Value("transaction_isolation"), function="current_setting", output_field=TextField())

Timeout = float | timedelta | None


class Ending(NamedTuple):
    """How a job has ended."""

    state: str
    output: Any
    error: str
    summary: str | None
    note: str

    def result(self, job_id: UUID) -> Any:
        """The output. Raises ``JobFailed`` or ``JobCancelled`` if the job was not completed."""
        if self.state == JobState.COMPLETED:
            return self.output
        if self.state in DEAD:
            raise JobFailed(job_id=job_id, state=self.state, error=self.error, summary=self.summary or "")
        raise JobCancelled(job_id=job_id, state=self.state, note=self.note)


@dataclass(eq=False, slots=True)
class Waiter:
    """One call that waits for one job."""

    using: str
    job_id: UUID
    since: float = field(default_factory=time.monotonic)
    polled_at: float = field(default_factory=time.monotonic)
    ending: Future[Ending] = field(default_factory=Future)

    @property
    def due(self) -> float:
        """When to poll for it again, by the monotonic clock."""
        return self.polled_at + min(max(PART * (self.polled_at - self.since), SHORTEST), LONGEST)

    def tell(self, ending: Ending | BaseException) -> None:
        with suppress(InvalidStateError):  # an async caller has stopped waiting
            if isinstance(ending, BaseException):
                self.ending.set_exception(ending)
            else:
                self.ending.set_result(ending)


class Poller:
    """Polls in a thread of its own, which lives while any call waits."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in the child of a fork: the thread and those who wait are in the parent."""
        self._changed = threading.Condition()
        self._waiters: set[Waiter] = set()
        self._thread: threading.Thread | None = None
        self._failing_since: dict[str, float] = {}  # databases that could not be asked
        self.polls = 0

    @property
    def waiting_count(self) -> int:
        """How many calls wait."""
        return len(self._waiters)

    @contextmanager
    def waiting(self, using: str, job_id: UUID) -> Iterator[Future[Ending]]:
        """The ending of the job, once it is known."""
        waiter = Waiter(using, job_id)
        with self._changed:
            self._waiters.add(waiter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="jobqueue-results", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield waiter.ending
        finally:
            with self._changed:
                self._waiters.discard(waiter)
                self._changed.notify()

    def _run(self) -> None:
        try:
            while waiters := self._next():
                for using in {waiter.using for waiter in waiters}:
                    self._poll(using, [waiter for waiter in waiters if waiter.using == using])
        finally:
            connections.close_all()

    def _next(self) -> list[Waiter]:
        """Those who wait, when the next poll is due. If none are left, the thread ends."""
        with self._changed:
            while self._waiters:
                rest = min(waiter.due for waiter in self._waiters) - time.monotonic()
                if rest <= 0:
                    return list(self._waiters)
                self._changed.wait(rest)
            self._thread = None
            return []

    def _poll(self, using: str, waiters: list[Waiter]) -> None:
        now = time.monotonic()
        for waiter in waiters:
            waiter.polled_at = now
        self.polls += 1
        try:
            endings = endings_of(using, {waiter.job_id for waiter in waiters})
            self._failing_since.pop(using, None)
        except (OperationalError, InterfaceError) as error:
            connections[using].close()
            if now - self._failing_since.setdefault(using, now) >= OUTAGE_SECONDS:
                self._tell(using, [(waiter, error) for waiter in waiters])
        except Exception as error:  # those who wait must not wait for ever
            self._tell(using, [(waiter, error) for waiter in waiters])
        else:
            self._tell(using, [(one, endings[one.job_id]) for one in waiters if one.job_id in endings])

    def _tell(self, using: str, told: list[tuple[Waiter, Ending | BaseException]]) -> None:
        with self._changed:
            self._waiters -= {waiter for waiter, _ in told}
            is_last = all(waiter.using != using for waiter in self._waiters)
        if is_last:  # closed first, because a test may drop the database as soon as it is told
            connections[using].close()
        for waiter, ending in told:
            waiter.tell(ending)


poller = Poller()
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=poller.forget)


def endings_of(using: str, job_ids: Iterable[UUID]) -> dict[UUID, Ending | BaseException]:
    """How these jobs have ended, of those that have; ``JobNotFound`` stands for a job that does not exist."""
    ids = set(job_ids)
    rows = (
        Job.objects.using(using)
        .filter(pk__in=ids)
        .values_list("pk", "state", "output", "error", "error_summary", "note")
    )
    found = {row[0]: Ending(*row[1:]) for row in rows}
    ended = {pk: ending for pk, ending in found.items() if ending.state in FINAL}
    return {**ended, **{pk: JobNotFound(pk) for pk in ids - found.keys()}}


def wait(job_id: UUID, using: str, timeout: Timeout) -> Any:
    """The output of the job, once it is completed."""
    seconds = _seconds(timeout)
    ending = look(job_id, using)
    if ending is None:
        with poller.waiting(using, job_id) as future:
            try:
                ending = future.result(seconds)
            except TimeoutError:
                raise WaitTimeout(job_id=job_id, seconds=seconds or 0.0) from None
    return ending.result(job_id)


async def wait_async(job_id: UUID, using: str, timeout: Timeout) -> Any:
    """Like :func:`wait`, for async code."""
    seconds = _seconds(timeout)
    ending = await sync_to_async(look)(job_id, using)
    if ending is None:
        with poller.waiting(using, job_id) as future:
            try:
                ending = await asyncio.wait_for(asyncio.wrap_future(future), seconds)
            except TimeoutError:
                raise WaitTimeout(job_id=job_id, seconds=seconds or 0.0) from None
    return ending.result(job_id)


def _seconds(timeout: Timeout) -> float | None:
    return None if timeout is None else check_seconds(timeout, option="timeout", minimum=0, maximum=YEAR)


def look(job_id: UUID, using: str) -> Ending | None:
    """How the job has ended, as the caller's transaction sees it, or ``None``.

    Raises ``CannotWait`` inside a transaction in which waiting would never end, and ``JobNotFound``.
    """
    ending = endings_of(using, [job_id]).get(job_id)
    if isinstance(ending, BaseException):
        raise ending
    if ending is None and not connections[using].get_autocommit():
        _check_transaction(job_id, using)
    return ending


def _check_transaction(job_id: UUID, using: str) -> None:
    transaction = Job.objects.using(using).filter(pk=job_id).annotate(current=CURRENT_XID, isolation=ISOLATION)
    sent, moved, current, isolation = transaction.values_list("sent_xid", "moved_xid", "current", "isolation").get()
    if isolation != "read committed":
        raise CannotWait(
            job_id=job_id,
            problem=f"this transaction has the isolation level {isolation.upper()} and never sees what the job does",
        )
    if current in {sent, moved} - {None}:
        raise CannotWait(job_id=job_id, problem="it was sent or changed in this transaction, which is still open")
