"""Which database a verb means, statements on it, and connections outside of Django's pool (``OPTIONS["pool"]``).

A pool lends a connection for the length of a request. Workers and streams keep theirs: they listen, hold session locks
and set timeouts, all of which would go back to the pool with the connection and surprise the next request. They would
also use up its places, so that handlers wait for one and fail. And sockets of a pool must not be shared by a fork:
the answer to one process would be read by another.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import ProgrammingError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors

from ..conf import wrong_vendor
from ..models import Job
from ..process_memory import ProcessMemory


def database(using: str | None) -> str:
    """The database that is meant; ``ImproperlyConfigured`` if it is not PostgreSQL."""
    alias = using or router.db_for_write(Job)
    if alias not in checked.aliases:
        check_vendor(alias)
        checked.aliases.add(alias)
    return alias


class CheckedDatabases(ProcessMemory):
    """The databases that were found to be PostgreSQL: that cannot change while the process lives."""

    def __init__(self) -> None:
        super().__init__()
        self.aliases: set[str] = set()

    def forget(self) -> None:
        self.aliases.clear()


checked = CheckedDatabases()


def check_vendor(alias: str) -> None:
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        raise ImproperlyConfigured(" ".join(wrong_vendor(alias, vendor)))


def explain_missing_tables(error: ProgrammingError, using: str) -> None:
    """Raise ``ImproperlyConfigured``, with advice to run ``migrate``, if the tables of this app are missing."""
    if isinstance(error.__cause__, errors.UndefinedTable | errors.UndefinedColumn) and "jobqueue_" in str(error):
        where = "" if using == "default" else f" --database {using}"
        raise ImproperlyConfigured(
            f"The tables of django_jobqueue are missing or old in the database {using!r}: run manage.py migrate{where}."
        ) from error


def execute(using: str, sql: str, params: Any = None) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def rows(using: str, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


# ---------------------------------------------------------------------------------------------------- pools


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
