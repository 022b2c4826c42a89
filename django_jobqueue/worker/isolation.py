"""What a handler may leave behind in its thread, and putting it back, so that the next job finds a clean place."""

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

# What outlasts a transaction. It may stand behind a comment or another statement, or inside a psycopg.sql object.
_LASTING = re.compile(
    r"""(?:^|;|\*/|['"(])\s*(?:SET\s+(?!LOCAL\b|TRANSACTION\b|CONSTRAINTS\b)|RESET\s|LISTEN\s|PREPARE\s|DEALLOCATE\s
        |CREATE\s+(?:GLOBAL\s+|LOCAL\s+)?TEMP)
    |set_config\((?![^;]*\btrue\b)
    |pg_(?:try_)?advisory_(?:un)?lock""",
    re.I | re.X,
)


_MOST_REMEMBERED, _LONGEST_REMEMBERED = 512, 4_096  # statements, and characters of one


def _lasts(statement: str) -> bool:
    """Whether it may change the session for longer than a transaction."""
    look = _lasts_as_before if len(statement) <= _LONGEST_REMEMBERED else _lasts_as_before.__wrapped__
    return look(statement)


@lru_cache(maxsize=_MOST_REMEMBERED)
def _lasts_as_before(statement: str) -> bool:
    """Remembered, because reading a long statement takes longer than most handlers' overhead."""
    return _LASTING.search(statement) is not None


class LeftOpen(Exception):
    """A handler returned inside a transaction."""

    def __init__(self) -> None:
        super().__init__("The handler left a transaction open; it was rolled back.")


class _Watch:
    """How often this process changed its folder: to ask for the folder costs more than most handlers' overhead."""

    moves = 0
    is_set = False

    @classmethod
    def set(cls) -> None:
        if not cls.is_set:
            cls.is_set = True
            sys.addaudithook(cls._hear)

    @classmethod
    def _hear(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.chdir":
            cls.moves += 1


class Surroundings:
    """The current folder, the locale and the database connections of a thread."""

    def __init__(self) -> None:
        _Watch.set()
        self.folder, self._moves = _folder(), _Watch.moves
        self.locale = locale.setlocale(locale.LC_ALL)
        self._changed: set[str] = set()  # connections whose session is not as it was
        self._outages = 0
        self._connections = [self._watched(alias) for alias in connections]

    def _watched(self, alias: str) -> BaseDatabaseWrapper:
        connection = own_connection(alias)  # also where handlers run in the threads of a process that has a pool
        connection.execute_wrappers.append(self.notice)
        return connection

    def begin(self, outages: int) -> None:
        """Before a handler: close connections that broke while they were not in use."""
        for connection in self._connections:
            raw: Any = connection.connection
            if raw is not None and (outages != self._outages or raw.closed or _has_news(raw.fileno())):
                connection.close()
        self._outages = outages

    def restore(self) -> None:
        """Put everything back; raises ``LeftOpen`` if a transaction had to be rolled back."""
        if self._moves != _Watch.moves:
            if self.folder:
                os.chdir(self.folder)
            self._moves = _Watch.moves
        if locale.setlocale(locale.LC_ALL) != self.locale:
            locale.setlocale(locale.LC_ALL, self.locale)
        left_open = False
        for place, connection in enumerate(self._connections):
            if (connection.connection is not None or connection.in_atomic_block) and self._restore(connection):
                self._connections[place] = self._watched(connection.alias)
                left_open = True
        if left_open:
            raise LeftOpen

    def _restore(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the connection was inside a transaction, and is gone now."""
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
        """Sees what changes a session for longer than a transaction."""
        if _lasts(sql if isinstance(sql, str) else repr(sql)):
            self._changed.add(context["connection"].alias)
        return execute(sql, params, many, context)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def _has_news(socket: int) -> bool:
    """Whether the server said something on an idle connection: mostly that it has ended it."""
    looked = select.poll()
    looked.register(socket, select.POLLIN)
    return bool(looked.poll(0))


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Away with the connection and all that Django remembers of its transaction."""
    raw: Any = connection.connection
    if raw is not None:
        raw.close()
    del connections[connection.alias]
