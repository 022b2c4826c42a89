"""Connections outside of Django's pool (``OPTIONS["pool"]``).

A pool lends a connection for one request. Workers and streams keep their connections: they listen, hold session locks
and set timeouts. A connection returned to the pool in this state would disturb the next request. They would also use up
the pool's connections, so that handlers wait for a connection and fail. And processes must not share the sockets of a
pool after a fork: one process would read the answer to another.
"""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..connection_names import name_thread


def remove_pools() -> None:
    """Close all pools of this process; connections are opened without a pool from now on.

    Only for a process that is a worker and nothing else; before it forks, and before its first query.
    """
    pooled = [alias for alias in connections if _has_pool(connections[alias])]
    for alias in pooled:
        connection: Any = connections[alias]
        connection.close()
        if alias in connection._connection_pools:  # otherwise close_pool() would first create a pool
            connection.close_pool()
    for alias in pooled:
        settings = connections.settings[alias]
        settings["OPTIONS"] = _without_pool(settings)  # shared by the connections of all threads


def own_connection(alias: str, role: str, worker: str = "") -> BaseDatabaseWrapper:
    """This thread's connection to a database, from now on without a pool; the pool of other threads stays.

    Its ``application_name`` tells the ``role`` of the thread, and of which ``worker`` it is.
    """
    connection = connections[alias]
    if _has_pool(connection):
        settings = connection.settings_dict
        connection = type(connection)({**settings, "OPTIONS": _without_pool(settings)}, alias)
        connections[alias] = connection
    name_thread(connection, role, worker)
    return connection


def _has_pool(connection: BaseDatabaseWrapper) -> bool:
    """Whether it has a pool of Django's: in other backends this option may have another meaning."""
    return bool(connection.settings_dict["OPTIONS"].get("pool")) and hasattr(connection, "close_pool")


def _without_pool(settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings["OPTIONS"].items() if name != "pool"}
