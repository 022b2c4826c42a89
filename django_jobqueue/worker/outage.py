"""Lost connections of a child, and whether it reaches the same server afterwards."""

from __future__ import annotations

import logging
import random
import time
from typing import Any

from ..engine.workers import server_identity
from ..log_texts import error_line, error_text

logger = logging.getLogger("django_jobqueue.worker")

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
FLAPPING_SECONDS = 5.0  # an outage that begins again within that time is not logged again


class Outage:
    """Whether the connection to the database is lost, and how long to wait before the next try."""

    def __init__(self, worker: str) -> None:
        self.pause = FIRST_PAUSE_SECONDS
        self._worker = worker
        self._since: float | None = None
        self._logged_at = self._ended_at = float("-inf")
        self._is_logged = False

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def begin(self, error: Exception) -> None:
        """Called when a statement has failed, and again for each try that fails."""
        now = time.monotonic()
        is_new = self._since is None
        if self._since is None:
            self._since = now
            if now - self._ended_at > FLAPPING_SECONDS:
                self.pause = FIRST_PAUSE_SECONDS
        self.pause = min(self.pause * 2, LONGEST_PAUSE_SECONDS) * random.uniform(0.75, 1)
        if is_new and now - self._logged_at > FLAPPING_SECONDS:
            self._logged_at, self._is_logged = now, True
            logger.warning(
                "lost connection to the database: child %s: %s; trying again in %.1f s",
                self._worker,
                error_line(error),
                self.pause,
                extra={"worker": self._worker, "error": error_text(error), "seconds": round(self.pause, 1)},
            )

    def end(self, given_back: int) -> None:
        """Called when the database is back, with the number of jobs that were returned to the queue."""
        self._ended_at = time.monotonic()
        if self._is_logged and self._since is not None:
            seconds = round(self._ended_at - self._since, 1)
            logger.info(
                "database is back: child %s, after %.1f s; jobs returned to the queue: %d",
                self._worker,
                seconds,
                given_back,
                extra={"worker": self._worker, "seconds": seconds, "returned": given_back},
            )
        self._is_logged, self._since = False, None


class Server:
    """The server that a child is connected to, and when it was last replaced or restarted."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._identity: tuple[Any, ...] | None = None
        self._replaced_at = float("-inf")

    @property
    def is_known(self) -> bool:
        return self._identity is not None

    def identify(self) -> None:
        before, self._identity = self._identity, server_identity(using=self._using)
        if before not in (None, self._identity):
            self._replaced_at = time.monotonic()

    def restarted_since(self, moment: float) -> bool:
        """Whether this process has seen that the server was restarted or replaced since then."""
        self.identify()
        return self._replaced_at >= moment
