"""Fetching ahead: the server claims the next batch while this one is begun and written down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from django.db import connections

from ..engine.databases import own_connection
from ..models import Job
from . import sessions

Fetch = Callable[[], list[Job]]


class Ahead:
    """One fetch at a time, in a thread and on a connection of its own, which exist only once a child was busy."""

    def __init__(self, using: str, wake: threading.Event) -> None:
        self._using, self._wake = using, wake
        self._questions: SimpleQueue[Fetch | None] = SimpleQueue()
        self._answers: SimpleQueue[list[Job] | Exception] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.asked = 0  # how many jobs are asked for; 0 if none are

    def ask(self, fetch: Fetch, jobs: int) -> None:
        """Begin a fetch; raises ``RuntimeError`` if the process can have no more threads."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="jobqueue-fetch", daemon=True)
            thread.start()
            self._thread = thread
        self.asked = jobs
        self._questions.put(fetch)

    def is_waited_for(self) -> bool:
        return bool(self.asked) and self._answers.empty()

    def answer(self) -> list[Job]:
        """What was claimed, waiting for it if need be; raises what the fetch raised."""
        answer = self._answers.get()
        self.asked = 0
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        if self._thread is not None:
            self._questions.put(None)

    def _run(self) -> None:
        own_connection(self._using)
        sessions.limit(statement=sessions.STATEMENT_SECONDS)
        while (fetch := self._questions.get()) is not None:
            try:
                self._answers.put(fetch())
            except Exception as error:  # it is the child's to judge
                connections[self._using].close()
                self._answers.put(error)
            self._wake.set()
        connections[self._using].close()
