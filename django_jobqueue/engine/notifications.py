"""Being woken by NOTIFY: one connection that listens, always reading its socket."""

from __future__ import annotations

import logging
import os
import random
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
from django.db import Error, connections
from psycopg.sql import Literal

from ..conf import get_settings
from ..exceptions import InvalidOption
from ..options import YEAR, check_seconds
from ..process_memory import ProcessMemory
from .databases import execute, rows
from .pools import own_connection
from .sql.send import CHANNEL, LISTEN, NOTIFICATION_QUEUE_USAGE, NOTIFY
from .transactions import T, after_commit, joins

logger = logging.getLogger("django_jobqueue")
worker_logger = logging.getLogger("django_jobqueue.worker")

JOIN_SECONDS = 1.0  # a listener that is just trying to connect may take longer, and ends by itself


class Listener(threading.Thread):
    """Calls ``woken(queue)`` for each notification, and ``woken("")`` whenever some may have been missed.

    ``lost()`` is called when the connection broke.
    """

    def __init__(self, using: str, woken: Callable[[str], None], lost: Callable[[], None]) -> None:
        super().__init__(name="jobqueue-listener", daemon=True)
        self.using, self.woken, self.lost = using, woken, lost
        self._stopping = threading.Event()
        self._ear, self._bell = os.pipe()  # so that it need not look up now and then
        self._pause = 0.1

    def run(self) -> None:
        own_connection(self.using)
        while not self._stopping.is_set():
            try:
                self._listen()
            except (Error, psycopg.Error, OSError) as error:
                worker_logger.debug("listening was interrupted", extra={"error": str(error).strip()})
                connections[self.using].close()
                self.lost()
            self._stopping.wait(self._pause * random.uniform(0.5, 1))
            self._pause = min(self._pause * 2, 1.0)
        connections[self.using].close()
        os.close(self._ear)

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
            os.close(self._bell)


# ------------------------------------------------------------------------------------- outside of a worker's process


class _Hub:
    """The listener of one database in this process, for as long as anybody waits for its notifications."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.subscribers: set[Callable[[str], None]] = set()
        self.listener: Listener | None = None

    def woken(self, queue: str) -> None:
        for subscriber in list(self.subscribers):
            subscriber(queue)


class _Hubs:
    """The hubs of this process by database. A hub stays in here; its listener runs while it has subscribers."""

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
                woken("")  # it listens already, or will say so
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
    """Whether there are notifications to be heard."""
    settings = get_settings()
    return settings.NOTIFY and not settings.POOLER


@contextmanager
def subscribed(using: str, woken: Callable[[str], None]) -> Iterator[None]:
    """Have ``woken(queue)`` called as a listener does; nothing is called where there are no notifications."""
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
    """What ``fetch`` returns as soon as that is something, or nothing when the time is over."""
    seconds = check_seconds(wait, option="wait", minimum=0, maximum=YEAR)
    poll = get_settings().POLL_SECONDS
    if poll_interval is not None:
        poll = check_seconds(poll_interval, option="poll_interval", minimum=0.001, maximum=YEAR)
    if joins(connections[using]):
        raise InvalidOption("wait", "cannot be used inside a transaction", hint="Call fetch() outside atomic().")
    deadline = time.monotonic() + seconds
    found = fetch()
    if found or not seconds:
        return found
    bell = threading.Event()

    def woken(name: str) -> None:
        if name in ("", queue):
            bell.set()

    with subscribed(using, woken):
        while not found and (left := deadline - time.monotonic()) > 0:
            bell.wait(min(left, poll))
            bell.clear()
            found = fetch()
    return found


class _WakeUps:
    """The queues that one transaction will wake, each once."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[set[str]]] = {}
        self.sent: set[str] = set()

    def covers(self, queue: str, savepoints: set[str]) -> bool:
        """Whether a hook is set that is rolled back only together with what is done now."""
        return any(hook <= savepoints for hook in self.hooks.get(queue, ()))


class _WakeUp:
    """A notification that goes out after commit."""

    def __init__(self, using: str, queue: str, shared: _WakeUps) -> None:
        self.using, self.queue, self.shared = using, queue, shared

    def __call__(self) -> None:
        if self.queue in self.shared.sent:
            return
        self.shared.sent.add(self.queue)
        try:
            execute(self.using, NOTIFY.format(channel=CHANNEL, queue=Literal(self.queue).as_string()))
        except Exception as error:  # the jobs are stored and polling finds them: a lost wake-up only costs time
            _say_unnotified(self.using, self.queue, error)


_SAY_EVERY_SECONDS = 10.0


class LastWarning(ProcessMemory):
    """When this process last said that it could not notify workers."""

    def __init__(self) -> None:
        super().__init__()
        self.at = float("-inf")  # monotonic time

    def forget(self) -> None:
        self.at = float("-inf")


_last_warning = LastWarning()


def _say_unnotified(using: str, queue: str, error: Exception) -> None:
    """Now and then; and if the server's queue of notifications is full, have it look whether it still is."""
    if time.monotonic() - _last_warning.at < _SAY_EVERY_SECONDS:
        return
    _last_warning.at = time.monotonic()
    logger.warning("could not notify workers", extra={"queue": queue, "error": str(error).strip()})
    with suppress(Exception):
        rows(using, NOTIFICATION_QUEUE_USAGE)


def wake(using: str, queues: Iterable[str]) -> None:
    """Tell workers, after commit and once, that these queues have something to fetch.

    Never inside the caller's transaction, because a commit that carries NOTIFY waits for all others that do.
    """
    if not get_settings().NOTIFY:
        return
    connection = connections[using]
    shared = next((f.shared for _, f, *_ in reversed(connection.run_on_commit) if isinstance(f, _WakeUp)), _WakeUps())
    savepoints = set(connection.savepoint_ids)
    for queue in queues:
        if not shared.covers(queue, savepoints) and after_commit(using, _WakeUp(using, queue, shared)):
            shared.hooks.setdefault(queue, []).append(savepoints)
