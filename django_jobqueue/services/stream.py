"""Streams: jobs pushed to a consumer as soon as they can go, never more at once than it has room for."""

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
    """The assigners of this process's streams, each for as long as it is used."""

    def __init__(self) -> None:
        self._assigners: weakref.WeakSet[Assigner] = weakref.WeakSet()

    def add(self, assigner: Assigner) -> None:
        self._assigners.add(assigner)

    def end(self) -> list[Assigner]:
        """Ask all to end, and return those that are to be waited for."""
        alive = [one for one in self._assigners if one.is_alive()]
        for one in alive:
            one.end()
        return alive

    def exit(self) -> None:
        """As far as that takes no long time: a process must be able to end without its database."""
        for one in self._assigners:
            one.exiting = True
        for one in self.end():
            one.join(EXIT_SECONDS)


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
    """Stream jobs to this process: an iterator of batches, whose jobs are active and belong to ``worker``.

    Of one queue or of all, those that carry all of the ``tags``, oldest first, and no more than ``capacity`` at once:
    an assigned job takes a place, delivered or not, until it is completed, failed, stopped or lost. Close it, or use it
    in a ``with``: what was not delivered goes back, uncharged. Raises ``InvalidOption`` and ``QueueNotFound``.
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
    """The same for ``async for`` and ``async with``."""
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
    """End all streams of this process, and give back what they have not delivered.

    Raises an ``ExceptionGroup`` of what kept some of them from doing so; their jobs are recovered as those of a lost
    worker are.
    """
    streams = open_streams.end()
    for one in streams:
        one.join()
    failures = [one.failure for one in streams if one.failure is not None]
    if failures:
        raise ExceptionGroup("streams could not give back their jobs", failures)


class _Stream:
    """What both kinds of streams have: an assigner, which ends with them."""

    def __init__(self, terms: Terms, ready: Any) -> None:
        self._assigner = Assigner(terms, fetch, ready)
        open_streams.add(self._assigner)
        self._finalizer = weakref.finalize(self, self._assigner.end)  # of a stream that was dropped and not closed
        self._finalizer.atexit = False
        self._assigner.start()

    @property
    def capacity(self) -> int:
        return self._assigner.terms.capacity

    @property
    def free(self) -> int:
        """How many more jobs could be assigned now, as far as is known."""
        return self._assigner.free()

    @property
    def is_closed(self) -> bool:
        return self._assigner.ending.is_set()

    def _take(self) -> list[Job]:
        """What is there; ``StreamClosed`` or what ended it, when it has ended."""
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
    """An iterator of batches of jobs, for any number of threads; also a context manager that closes it."""

    def __init__(self, terms: Terms) -> None:
        self._ready = threading.Condition()
        super().__init__(terms, partial(_notify, self._ready))

    def get(self, timeout: float | None = None) -> list[Job]:
        """The next batch, or an empty list when there was none in ``timeout`` seconds.

        Raises ``StreamClosed`` when the stream was closed, and what ended it when that was an error.
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
        """End it and give back, uncharged, what was not delivered; harmless if that was done already."""
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
    """The same for tasks of one event loop."""

    def __init__(self, terms: Terms) -> None:
        self._ready = asyncio.Event()
        super().__init__(terms, partial(_set, asyncio.get_running_loop(), self._ready))

    async def get(self, timeout: float | None = None) -> list[Job]:
        """The next batch, or an empty list when there was none in ``timeout`` seconds.

        Raises ``StreamClosed`` when the stream was closed, and what ended it when that was an error.
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
        """End it and give back, uncharged, what was not delivered; harmless if that was done already."""
        await asyncio.to_thread(self._finish)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _set(loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
    with suppress(RuntimeError):  # of a loop that has ended, with everybody who waited in it
        loop.call_soon_threadsafe(ready.set)
