"""Connections outside of Django's pool (``OPTIONS["pool"]``).

A pool lends a connection for the length of a request. Workers and streams keep theirs: they listen, hold session locks
and set timeouts, all of which would go back to the pool with the connection and surprise the next request. They would
also use up its places, so that handlers wait for one and fail. And sockets of a pool must not be shared by a fork:
the answer to one process would be read by another.
"""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


def remove_pools() -> None:
    """Close all pools of this process, and have every database connected without one from now on.

    For a process that is a worker and nothing else; before it forks, and before its first query.
    """
    pooled = [alias for alias in connections if _has_pool(connections[alias])]
    for alias in pooled:
        connection: Any = connections[alias]
        connection.close()
        if alias in connection._connection_pools:  # else close_pool() would first make one
            connection.close_pool()
    for alias in pooled:
        settings = connections.settings[alias]
        settings["OPTIONS"] = _without_pool(settings)  # shared by the connections of all threads


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """This thread's connection to a database, from now on without a pool; the pool of other threads stays."""
    connection = connections[alias]
    if _has_pool(connection):
        settings = connection.settings_dict
        connection = type(connection)({**settings, "OPTIONS": _without_pool(settings)}, alias)
        connections[alias] = connection
    return connection


def _has_pool(connection: BaseDatabaseWrapper) -> bool:
    """Whether it is one of Django's: backends of others may mean something else by this option."""
    return bool(connection.settings_dict["OPTIONS"].get("pool")) and hasattr(connection, "close_pool")


def _without_pool(settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings["OPTIONS"].items() if name != "pool"}
