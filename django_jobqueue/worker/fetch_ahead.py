"""Fetching ahead: the server claims the next batch while the child begins and records the current one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from django.db import connections

from ..engine.pools import own_connection
from ..models import Job
from . import sessions

Fetch = Callable[[], list[Job]]


class FetchAhead:
    """Runs one fetch at a time, in its own thread on its own connection. Both are made when a child is first busy."""

    def __init__(self, using: str, wake: threading.Event, worker: str = "") -> None:
        self._using, self._wake, self._worker = using, wake, worker
        self._requests: SimpleQueue[Fetch | None] = SimpleQueue()
        self._replies: SimpleQueue[list[Job] | Exception] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.requested = 0  # how many jobs the running fetch asks for; 0 if none runs

    def request(self, fetch: Fetch, jobs: int) -> None:
        """Begin a fetch. Raises ``RuntimeError`` if the process can start no more threads."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="jobqueue-fetch", daemon=True)
            thread.start()
            self._thread = thread
        self.requested = jobs
        self._requests.put(fetch)

    def is_pending(self) -> bool:
        """Whether a fetch runs and has not returned."""
        return bool(self.requested) and self._replies.empty()

    def result(self) -> list[Job]:
        """Wait for the fetch and return the jobs it claimed. Raises what the fetch raised."""
        reply = self._replies.get()
        self.requested = 0
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        if self._thread is not None:
            self._requests.put(None)

    def _run(self) -> None:
        own_connection(self._using, "fetch", self._worker)
        sessions.limit(statement=sessions.STATEMENT_SECONDS)
        while (fetch := self._requests.get()) is not None:
            try:
                self._replies.put(fetch())
            except Exception as error:  # result() raises it again, in the thread of the child
                connections[self._using].close()
                self._replies.put(error)
            self._wake.set()
        connections[self._using].close()
