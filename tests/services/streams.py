"""One way to drive both kinds of streams: the plain one, and the async one in a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from django_jobqueue import services
from django_jobqueue.models import Job
from tests.waiting import PATIENCE, until

Opened = services.JobStream | services.AsyncJobStream


class Plain:
    """Streams in this thread."""

    def open(self, worker: str = "w", **options: Any) -> Any:
        return services.stream(worker, **options)

    def get(self, stream: Any, timeout: float | None = PATIENCE) -> list[Job]:
        return list(stream.get(timeout))

    def following(self, stream: Any) -> list[Job] | None:
        """The next batch as a loop gets it; nothing when the loop ends."""
        return next(stream, None)

    def close(self, stream: Any) -> None:
        stream.close()

    def stop(self) -> None:
        pass


class Async:
    """Streams in an event loop, in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(2 * PATIENCE)

    def open(self, worker: str = "w", **options: Any) -> Any:
        return self.run(services.astream(worker, **options))

    def get(self, stream: Any, timeout: float | None = PATIENCE) -> list[Job]:
        return list(self.run(stream.get(timeout)))

    def following(self, stream: Any) -> list[Job] | None:
        async def following() -> list[Job] | None:
            return await anext(stream, None)

        return self.run(following())  # type: ignore[no-any-return]

    def close(self, stream: Any) -> None:
        self.run(stream.aclose())

    def stop(self) -> None:
        self.run(sync_to_async(connections.close_all)())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()


class Streams:
    """Opens streams of one kind, and closes them after the test."""

    def __init__(self, kind: Plain | Async) -> None:
        self.kind = kind
        self.opened: list[Any] = []

    def __call__(self, worker: str = "w", **options: Any) -> Any:
        stream = self.kind.open(worker, **{"poll_interval": 60, **options})
        self.opened.append(stream)
        return stream

    def get(self, stream: Any, timeout: float | None = PATIENCE) -> list[Job]:
        return self.kind.get(stream, timeout)

    def collect(self, stream: Any, number: int) -> list[Job]:
        """That many jobs, in as many batches as they come."""
        jobs: list[Job] = []

        def enough() -> bool:
            jobs.extend(self.get(stream, 0.2))
            return len(jobs) >= number

        until(enough, f"{number} jobs were delivered")
        assert len(jobs) == number
        return jobs

    def nothing(self, stream: Any, seconds: float = 0.3) -> bool:
        return self.get(stream, seconds) == []

    def close(self, stream: Any) -> None:
        self.kind.close(stream)

    def end(self) -> None:
        for stream in self.opened:
            with suppress(Exception):  # what a test provoked
                self.close(stream)
        self.kind.stop()


KINDS: dict[str, Callable[[], Plain | Async]] = {"plain": Plain, "async": Async}
