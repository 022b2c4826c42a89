"""Receiving notifications (NOTIFY): one connection per database that listens."""

from __future__ import annotations

import logging
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from django.db import Error, connections

from ..conf import get_settings
from ..exceptions import InvalidOption
from ..log_texts import error_line, error_text
from ..options import YEAR, check_seconds
from .pools import own_connection
from .sql.send import LISTEN
from .transactions import T, joins

worker_logger = logging.getLogger("django_jobqueue.worker")

JOIN_SECONDS = 1.0  # a listener that is connecting may take longer, and ends by itself


class Listener(threading.Thread):
    """Calls ``woken(queue)`` for each notification, and ``woken("")`` whenever notifications may have been missed.

    Calls ``lost()`` when the connection is broken.
    """

    def __init__(self, using: str, woken: Callable[[str], None], lost: Callable[[], None], worker: str = "") -> None:
        super().__init__(name="jobqueue-listener", daemon=True)
        self.using, self.woken, self.lost, self.worker = using, woken, lost, worker
        self._stopping = threading.Event()
        self._ear, self._bell = socket.socketpair()  # wakes the thread, so that it need not poll
        self._pause = 0.1

    def run(self) -> None:
        own_connection(self.using, "listener", self.worker)
        while not self._stopping.is_set():
            try:
                self._listen()
            except (Error, psycopg.Error, OSError) as error:
                worker_logger.debug(
                    "listening was interrupted: %s; trying again",
                    error_line(error),
                    extra={"error": error_text(error)},
                )
                connections[self.using].close()
                self.lost()
            self._stopping.wait(self._pause * random.uniform(0.5, 1))
            self._pause = min(self._pause * 2, 1.0)
        connections[self.using].close()
        self._ear.close()

    def _listen(self) -> None:
        wrapper = connections[self.using]
        with wrapper.cursor() as cursor:
            cursor.execute(LISTEN)
        connection: Any = wrapper.connection
        self._pause = 0.1
        self.woken("")
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            while not self._stopping.is_set():
                for notification in connection.notifies(timeout=0):
                    self.woken(notification.payload)
                selector.select()

    def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._bell.close()


# ------------------------------------------------------------------------------------- outside of a worker's process


class _Hub:
    """The listener of one database in this process; it runs while there are subscribers."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.subscribers: set[Callable[[str], None]] = set()
        self.listener: Listener | None = None

    def woken(self, queue: str) -> None:
        for subscriber in list(self.subscribers):
            subscriber(queue)


class _Hubs:
    """The hubs of this process by database. A hub is kept; its listener runs while it has subscribers."""

    def __init__(self) -> None:
        self._hubs: dict[str, _Hub] = {}
        self._lock = threading.Lock()

    def subscribe(self, using: str, woken: Callable[[str], None]) -> _Hub:
        with self._lock:
            hub = self._hubs.setdefault(using, _Hub(using))
            hub.subscribers.add(woken)
            if hub.listener is None:
                hub.listener = Listener(using, hub.woken, lambda: hub.woken(""))
                hub.listener.start()
            elif hub.listener.is_alive():
                woken("")  # it listens already; otherwise the listener calls this when it does
        return hub

    def unsubscribe(self, hub: _Hub, woken: Callable[[str], None]) -> None:
        listener = None
        with self._lock:
            hub.subscribers.discard(woken)
            if not hub.subscribers:
                listener, hub.listener = hub.listener, None
        if listener is not None:
            listener.stop()
            listener.join(JOIN_SECONDS)


_hubs = _Hubs()


def hears() -> bool:
    """Whether notifications are enabled and can be received."""
    settings = get_settings()
    return settings.NOTIFY and not settings.POOLER


@contextmanager
def subscribed(using: str, woken: Callable[[str], None]) -> Iterator[None]:
    """Call ``woken(queue)`` for notifications as a :class:`Listener` does, if notifications can be received."""
    if not hears():
        yield
        return
    hub = _hubs.subscribe(using, woken)
    try:
        yield
    finally:
        _hubs.unsubscribe(hub, woken)


def fetch_waiting(
    using: str,
    queue: str,
    fetch: Callable[[], list[T]],
    wait: float | timedelta,
    poll_interval: float | timedelta | None,
) -> list[T]:
    """Call ``fetch`` until it returns jobs, and return them; an empty list once the time is over."""
    seconds = check_seconds(wait, option="wait", minimum=0, maximum=YEAR)
    poll = get_settings().POLL_SECONDS
    if poll_interval is not None:
        poll = check_seconds(poll_interval, option="poll_interval", minimum=0.001, maximum=YEAR)
    if joins(connections[using]):
        raise InvalidOption("wait", "cannot be used inside a transaction", hint="Call fetch() outside atomic().")
    deadline = time.monotonic() + seconds
    jobs = fetch()
    if jobs or not seconds:
        return jobs
    bell = threading.Event()

    def woken(name: str) -> None:
        if name in ("", queue):
            bell.set()

    with subscribed(using, woken):
        while not jobs and (left := deadline - time.monotonic()) > 0:
            bell.wait(min(left, poll))
            bell.clear()
            jobs = fetch()
    return jobs
