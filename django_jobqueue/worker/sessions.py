"""Limits for the worker's own connections: none waits for ever, and none leaves locks behind for hours."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.signals import connection_created

from ..conf import get_settings

# For TCP: a server that vanished is noticed within seconds, not hours.
_OPTIONS = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "connect_timeout": 5,
}


class Limits(threading.local):
    """The limits of this thread's new connections; none until :func:`limit` sets them."""

    parameters: Mapping[str, str] = MappingProxyType({})


_limits = Limits()

STATEMENT_SECONDS = 30.0  # the longest time for a statement of a child

DATABASE_ERRORS = (DatabaseError, InterfaceError)  # a worker survives these: it tries again


def prepare(using: str) -> None:
    """Set the options of all connections of a worker's process, those of handlers too; called before the first one."""
    options = connections.settings[using].setdefault("OPTIONS", {})
    for name, value in _OPTIONS.items():
        options.setdefault(name, value)
    options.setdefault("tcp_user_timeout", int(get_settings().WORKER_FENCE_SECONDS * 1000))
    connection_created.connect(_set_limits, dispatch_uid="jobqueue_worker_limits")


def limit(*, statement: float, lock: float = 0.0) -> None:
    """Let new connections of this thread end statements, lock waits and idle transactions after that many seconds."""
    _limits.parameters = {
        "statement_timeout": f"{int(statement * 1000)}ms",
        "lock_timeout": f"{int(lock * 1000)}ms",
        # The loops of a worker are never idle inside a transaction. A transaction that is idle belongs to a process
        # without a connection, and its locks must be gone before other workers recover its jobs.
        "idle_in_transaction_session_timeout": f"{int(min(statement, get_settings().WORKER_FENCE_SECONDS) * 1000)}ms",
    }


@contextmanager
def limited(using: str) -> Iterator[None]:
    """Behind a pooler, where sessions cannot be configured: apply the limits to the transaction of this block."""
    parameters = _limits.parameters
    if not parameters or not get_settings().POOLER:
        yield
        return
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("; ".join(f"SET LOCAL {name} = '{value}'" for name, value in parameters.items()))
        yield


def _set_limits(*, connection: Any, **kwargs: Any) -> None:
    parameters = _limits.parameters
    if parameters and not get_settings().POOLER:
        with connection.cursor() as cursor:
            cursor.execute("; ".join(f"SET {name} = '{value}'" for name, value in parameters.items()))
