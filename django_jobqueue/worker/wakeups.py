"""Being woken by NOTIFY: one connection that listens, always reading its socket."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import Error, connections

from ..services.transactions import CHANNEL

logger = logging.getLogger("django_jobqueue.worker")


class Listener(threading.Thread):
    """Calls ``woken(queue)`` for each notification, and ``woken("")`` whenever some may have been missed.

    ``lost()`` is called when the connection broke.
    """

    def __init__(self, using: str, woken: Callable[[str], None], lost: Callable[[], None]) -> None:
        super().__init__(name="jobqueue-listener", daemon=True)
        self.using, self.woken, self.lost = using, woken, lost
        self._stopping = threading.Event()
        self._pause = 0.1

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except (Error, psycopg.Error, OSError) as error:
                logger.debug("listening was interrupted", extra={"error": str(error).strip()})
                connections[self.using].close()
                self.lost()
            self._stopping.wait(self._pause * random.uniform(0.5, 1))
            self._pause = min(self._pause * 2, 1.0)
        connections[self.using].close()

    def _listen(self) -> None:
        wrapper = connections[self.using]
        with wrapper.cursor() as cursor:
            cursor.execute(f'LISTEN "{CHANNEL}"')
        connection: Any = wrapper.connection
        self._pause = 0.1
        self.woken("")
        while not self._stopping.is_set():
            for notification in connection.notifies(timeout=0.5):
                self.woken(notification.payload)
                if self._stopping.is_set():
                    return

    def stop(self) -> None:
        self._stopping.set()
