"""Streams: fetchable jobs are assigned to a consumer at once, never more than its capacity."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from asgiref.sync import sync_to_async

from ..conf import get_settings
from ..engine.assignments import Assigner, Terms
from ..engine.databases import database
from ..engine.queues import check_exists
from ..exceptions import StreamClosed
from ..models import Job
from ..options import YEAR, check_int, check_seconds
from ..text import check_tags, check_text
from .fetch import fetch

MOST_CAPACITY = 10_000
EXIT_SECONDS = 5.0


class OpenStreams:
    """The assigners of this process's streams, each for as long as its stream is used."""

    def __init__(self) -> None:
        self._assigners: weakref.WeakSet[Assigner] = weakref.WeakSet()

    def add(self, assigner: Assigner) -> None:
        self._assigners.add(assigner)

    def end(self) -> list[Assigner]:
        """Ask all assigners to end, and return those that are still alive."""
        alive = [assigner for assigner in self._assigners if assigner.is_alive()]
        for assigner in alive:
            assigner.end()
        return alive

    def exit(self) -> None:
        """End all streams, but do not wait long: a process must be able to exit without its database."""
        for assigner in self._assigners:
            assigner.exiting = True
        for assigner in self.end():
            assigner.join(EXIT_SECONDS)


open_streams = OpenStreams()
atexit.register(open_streams.exit)


def stream(
    worker: str,
    *,
    queue: str | None = None,
    tags: Iterable[str] = (),
    capacity: int,
    poll_interval: float | timedelta | None = None,
    using: str | None = None,
) -> JobStream:
    """Return an iterator of batches of jobs, which are active and assigned to ``worker``.

    The stream assigns jobs of one queue, or of all queues, that carry all of the ``tags``, the oldest first. It never
    has more than ``capacity`` jobs at once: an assigned job counts, delivered or not, until it is completed, failed,
    stopped or lost. Close the stream, or use it in a ``with`` statement: undelivered jobs then return to the queue
    without using up a retry. Raises ``InvalidOption`` and ``QueueNotFound``.
    """
    return JobStream(_terms(worker, queue, tags, capacity, poll_interval, using))


async def astream(
    worker: str,
    *,
    queue: str | None = None,
    tags: Iterable[str] = (),
    capacity: int,
    poll_interval: float | timedelta | None = None,
    using: str | None = None,
) -> AsyncJobStream:
    """Like :func:`stream`, for ``async for`` and ``async with``."""
    terms = await sync_to_async(_terms)(worker, queue, tags, capacity, poll_interval, using)
    return AsyncJobStream(terms)


def _terms(
    worker: str,
    queue: str | None,
    tags: Iterable[str],
    capacity: int,
    poll_interval: float | timedelta | None,
    using: str | None,
) -> Terms:
    check_text(worker, option="worker", max_length=255, required=True)
    using = database(using)
    poll = get_settings().POLL_SECONDS
    if poll_interval is not None:
        poll = check_seconds(poll_interval, option="poll_interval", minimum=0.001, maximum=YEAR)
    return Terms(
        worker=worker,
        queue=None if queue is None else check_exists(queue, using).name,
        tags=check_tags(tags) if tags else [],
        capacity=check_int(capacity, option="capacity", minimum=1, maximum=MOST_CAPACITY),
        poll_seconds=poll,
        using=using,
    )


def close() -> None:
    """Close all streams of this process; their undelivered jobs return to the queue.

    Raises an ``ExceptionGroup`` if streams could not return their jobs; those are recovered like the jobs of a lost
    worker.
    """
    assigners = open_streams.end()
    for assigner in assigners:
        assigner.join()
    failures = [assigner.failure for assigner in assigners if assigner.failure is not None]
    if failures:
        raise ExceptionGroup("streams could not give back their jobs", failures)


class _Stream:
    """The base of both kinds of streams: it has an assigner, which ends with the stream."""

    def __init__(self, terms: Terms, ready: Any) -> None:
        self._assigner = Assigner(terms, fetch, ready)
        open_streams.add(self._assigner)
        self._finalizer = weakref.finalize(
            self, self._assigner.end
        )  # for a stream that is garbage collected without having been closed
        self._finalizer.atexit = False
        self._assigner.start()

    @property
    def capacity(self) -> int:
        return self._assigner.terms.capacity

    @property
    def free(self) -> int:
        """How many more jobs can be assigned, as far as this process knows."""
        return self._assigner.free()

    @property
    def is_closed(self) -> bool:
        return self._assigner.ending.is_set()

    def _take(self) -> list[Job]:
        """The assigned jobs. Once the stream has ended, raises ``StreamClosed`` or the error that ended it."""
        jobs = self._assigner.take()
        if jobs or not self.is_closed:
            return jobs
        if self._assigner.error is not None:
            raise self._assigner.error
        raise StreamClosed(self._assigner.terms.worker)

    def _finish(self) -> None:
        self._assigner.end()
        if threading.current_thread() is not self._assigner:
            self._assigner.join()
        if self._assigner.failure is not None:
            raise self._assigner.failure


class JobStream(_Stream):
    """An iterator of batches of jobs for any number of threads, and a context manager that closes the stream."""

    def __init__(self, terms: Terms) -> None:
        self._ready = threading.Condition()
        super().__init__(terms, partial(_notify, self._ready))

    def get(self, timeout: float | None = None) -> list[Job]:
        """Return the next batch of jobs, or an empty list if there was none in ``timeout`` seconds.

        Raises ``StreamClosed`` if the stream was closed, or the error that ended the stream.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._ready:
            while not (jobs := self._take()):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._ready.wait(left)
            return jobs

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Job]:
        try:
            return self.get()
        except StreamClosed:
            raise StopIteration from None

    def close(self) -> None:
        """Close the stream; undelivered jobs return to the queue without using up a retry. May be called twice."""
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _notify(ready: threading.Condition) -> None:
    with ready:
        ready.notify_all()


class AsyncJobStream(_Stream):
    """Like :class:`JobStream`, for tasks of one event loop."""

    def __init__(self, terms: Terms) -> None:
        self._ready = asyncio.Event()
        super().__init__(terms, partial(_set, asyncio.get_running_loop(), self._ready))

    async def get(self, timeout: float | None = None) -> list[Job]:
        """Return the next batch of jobs, or an empty list if there was none in ``timeout`` seconds.

        Raises ``StreamClosed`` if the stream was closed, or the error that ended the stream.
        """
        try:
            async with asyncio.timeout(timeout):
                while not (jobs := self._take()):
                    self._ready.clear()
                    if jobs := self._take():
                        break
                    await self._ready.wait()
        except TimeoutError:
            return []
        return jobs

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Job]:
        try:
            return await self.get()
        except StreamClosed:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Close the stream; undelivered jobs return to the queue without using up a retry. May be called twice."""
        await asyncio.to_thread(self._finish)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _set(loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has ended, and with it all tasks that waited in it
        loop.call_soon_threadsafe(ready.set)
