"""Restoring what a handler may change in its thread: the current folder, the locale, database connections."""

from __future__ import annotations

import locale
import os
import re
import select
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from ..engine.pools import own_connection

# Statements whose effect outlasts a transaction. They may follow a comment or another statement, or be in a psycopg.sql
# object.
_LASTING = re.compile(
    r"""(?:^|;|\*/|['"(])\s*(?:SET\s+(?!LOCAL\b|TRANSACTION\b|CONSTRAINTS\b)|RESET\s|LISTEN\s|PREPARE\s|DEALLOCATE\s
        |CREATE\s+(?:GLOBAL\s+|LOCAL\s+)?TEMP)
    |set_config\((?![^;]*\btrue\b)
    |pg_(?:try_)?advisory_(?:un)?lock""",
    re.I | re.X,
)


_MOST_REMEMBERED, _LONGEST_REMEMBERED = 512, 4_096  # statements, and characters of one


def _lasts(statement: str) -> bool:
    """Whether a statement may change the session for longer than a transaction."""
    look = _lasts_cached if len(statement) <= _LONGEST_REMEMBERED else _lasts_cached.__wrapped__
    return look(statement)


@lru_cache(maxsize=_MOST_REMEMBERED)
def _lasts_cached(statement: str) -> bool:
    """Cached, because searching a long statement takes longer than the overhead of most handlers."""
    return _LASTING.search(statement) is not None


class TransactionLeftOpen(Exception):
    """A handler returned inside a transaction."""

    def __init__(self) -> None:
        super().__init__("The handler left a transaction open; it was rolled back.")


class _FolderChanges:
    """Counts changes of the current folder, because asking for it takes longer than the overhead of most handlers."""

    moves = 0
    is_set = False

    @classmethod
    def set(cls) -> None:
        if not cls.is_set:
            cls.is_set = True
            sys.addaudithook(cls._on_audit_event)

    @classmethod
    def _on_audit_event(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.chdir":
            cls.moves += 1


class ThreadEnvironment:
    """The current folder, the locale and the database connections of a thread, as they were before its handlers."""

    def __init__(self) -> None:
        _FolderChanges.set()
        self.folder, self._moves = _folder(), _FolderChanges.moves
        self.locale = locale.setlocale(locale.LC_ALL)
        self._changed: set[str] = set()  # aliases of connections whose session was changed
        self._outages = 0
        self._connections = [self._watched(alias) for alias in connections]

    def _watched(self, alias: str) -> BaseDatabaseWrapper:
        connection = own_connection(alias, "handler")  # not from the pool that the process may have
        connection.execute_wrappers.append(self.notice)
        return connection

    def begin(self, outages: int) -> None:
        """Called before a handler: close connections that broke while they were idle."""
        for connection in self._connections:
            raw: Any = connection.connection
            if raw is not None and (outages != self._outages or raw.closed or _has_news(raw.fileno())):
                connection.close()
        self._outages = outages

    def restore(self) -> None:
        """Restore all. Raises ``TransactionLeftOpen`` if a transaction had to be rolled back."""
        if self._moves != _FolderChanges.moves:
            if self.folder:
                os.chdir(self.folder)
            self._moves = _FolderChanges.moves
        if locale.setlocale(locale.LC_ALL) != self.locale:
            locale.setlocale(locale.LC_ALL, self.locale)
        left_open = False
        for place, connection in enumerate(self._connections):
            if (connection.connection is not None or connection.in_atomic_block) and self._restore(connection):
                self._connections[place] = self._watched(connection.alias)
                left_open = True
        if left_open:
            raise TransactionLeftOpen

    def _restore(self, connection: BaseDatabaseWrapper) -> bool:
        """Restore a connection. Returns whether it was inside a transaction, and so was dropped."""
        raw: Any = connection.connection
        connection.queries_log.clear()
        if connection.in_atomic_block or (not raw.closed and raw.info.transaction_status != TransactionStatus.IDLE):
            _drop(connection)
            return True
        if connection.alias in self._changed or not connection.autocommit or raw.closed:
            connection.close()
        elif connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
        self._changed.discard(connection.alias)
        return False

    def notice(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Notice statements that change a session for longer than a transaction."""
        if _lasts(sql if isinstance(sql, str) else repr(sql)):
            self._changed.add(context["connection"].alias)
        return execute(sql, params, many, context)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def _has_news(socket: int) -> bool:
    """Whether the server sent something on an idle connection: mostly that the session has ended."""
    if not hasattr(select, "poll"):  # on Windows
        return bool(select.select([socket], [], [], 0)[0])
    looked = select.poll()
    looked.register(socket, select.POLLIN)
    return bool(looked.poll(0))


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Close the connection and forget all that Django remembers of its transaction."""
    raw: Any = connection.connection
    if raw is not None:
        raw.close()
    del connections[connection.alias]
