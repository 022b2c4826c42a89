"""How a worker's own connections behave: none may wait for ever, and none may leave locks behind for hours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.signals import connection_created

from ..conf import get_settings

# For TCP: a peer that vanished without a word is noticed within seconds, not hours.
_OPTIONS = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "connect_timeout": 5,
}
_limits = threading.local()

STATEMENT_SECONDS = 30.0  # of a child's own statements, at most

DATABASE_ERRORS = (DatabaseError, InterfaceError)  # what a worker survives: it tries again


def prepare(using: str) -> None:
    """Before the first connection of a worker's process: handlers' connections get this too."""
    options = connections.settings[using].setdefault("OPTIONS", {})
    for name, value in _OPTIONS.items():
        options.setdefault(name, value)
    options.setdefault("tcp_user_timeout", int(get_settings().WORKER_FENCE_SECONDS * 1000))
    connection_created.connect(_set_limits, dispatch_uid="jobqueue_worker_limits")


def limit(*, statement: float, lock: float = 0.0) -> None:
    """From now on, connections of this thread end statements after that many seconds, and idle transactions too."""
    _limits.parameters = {
        "statement_timeout": f"{int(statement * 1000)}ms",
        "lock_timeout": f"{int(lock * 1000)}ms",
        # Our loops never idle inside a transaction: one that does belongs to a process that is cut off, and its locks
        # must be gone before others take its jobs.
        "idle_in_transaction_session_timeout": f"{int(min(statement, get_settings().WORKER_FENCE_SECONDS) * 1000)}ms",
    }


@contextmanager
def limited(using: str) -> Iterator[None]:
    """The same limits inside this block where sessions cannot be configured: behind a pooler, in one transaction."""
    parameters = getattr(_limits, "parameters", None)
    if not parameters or not get_settings().POOLER:
        yield
        return
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("; ".join(f"SET LOCAL {name} = '{value}'" for name, value in parameters.items()))
        yield


def _set_limits(*, connection: Any, **kwargs: Any) -> None:
    parameters = getattr(_limits, "parameters", None)
    if parameters and not get_settings().POOLER:
        with connection.cursor() as cursor:
            cursor.execute("; ".join(f"SET {name} = '{value}'" for name, value in parameters.items()))
