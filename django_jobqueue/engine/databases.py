"""The database of a verb, and statements on it: several in one message, and frequent ones prepared.

A prepared statement is planned once per connection. Planning it each time took as long as running it.

Statements are prepared only in transactions of django_jobqueue's own, which can be run again. Behind a pooler each
transaction may use another server connection, which does not have the prepared statement. When that happens, the
statements of that database are sent in full from then on.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router
from psycopg import errors

from ..conf import get_settings, wrong_vendor
from ..log_texts import error_line
from ..models import Job
from ..process_memory import ProcessMemory
from .sql.session import BEGIN, BEGIN_AT_ONCE

logger = logging.getLogger("django_jobqueue")

Statement = tuple[str, Mapping[str, Any]]  # with named parameters, so that several can go in one message
Rows = list[tuple[Any, ...]]

AFTER = 5  # a statement is prepared once a connection has run it this often
MOST = 200  # statements counted for one connection

_PLACEHOLDER = re.compile(r"%s|%\((\w+)\)s|%%")


def database(using: str | None) -> str:
    """The alias of the database to use. Raises ``ImproperlyConfigured`` if it is not PostgreSQL."""
    alias = using or router.db_for_write(Job)
    if alias not in checked.aliases:
        check_vendor(alias)
        checked.aliases.add(alias)
    return alias


class CheckedDatabases(ProcessMemory):
    """The databases that were checked to be PostgreSQL: this cannot change while the process lives."""

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


# -------------------------------------------------------------------------------------------------- statements


def execute(using: str, sql: str, params: Any = None) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def rows(using: str, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


class OwnTransactions(threading.local):
    """This thread's transactions that are not the caller's, by database: whether each may use prepared statements."""

    open: Mapping[str, bool] = MappingProxyType({})


own_transactions = OwnTransactions()


def can_go_together(using: str) -> bool:
    """Whether a message can hold several statements: it cannot if the server binds their parameters."""
    connection = connections[using]
    connection.ensure_connection()
    return issubclass(connection.connection.cursor_factory, psycopg.ClientCursor)


def begin_with(using: str, first: Sequence[Statement]) -> list[Rows]:
    """Set up the transaction that begins now, and return the rows of its first statements."""
    if not first or not can_go_together(using):
        execute(using, BEGIN)
        return [claimed_rows(using, sql, params) for sql, params in first]
    start: Sequence[str] = BEGIN_AT_ONCE
    if names.can_name(using):
        if names.is_due(using, first) and not connections[using].get_autocommit():
            execute(using, BEGIN)  # which must come before anything else
            start = ()
        first = names.by_name(using, first)
    params = {name: value for _, params in first for name, value in params.items()}
    with connections[using].cursor() as cursor:
        _load_times_quickly(cursor)
        cursor.execute("; ".join([*start, *(sql for sql, _ in first)]), params)
        for _ in start[1:]:
            cursor.nextset()
        found = []
        for place, _ in enumerate(first):
            if start or place:
                cursor.nextset()
            found.append(_fetched(cursor))
        return found


def claimed_rows(using: str, sql: str, params: Any, *, by_name: bool = False) -> Rows:
    """Like :func:`rows`, also for a statement that returns no rows, and with times loaded quickly.

    With ``by_name`` the statement may be prepared: it is then planned once, for any values. Do not use this for a
    statement that has a state or a policy as a parameter, because its plan cannot use the indexes of some states.
    """
    if by_name and own_transactions.open.get(using):
        [(sql, params)] = names.by_name(using, [(sql, params)])
    with connections[using].cursor() as cursor:
        _load_times_quickly(cursor)
        cursor.execute(sql, params)
        return _fetched(cursor)


def rows_alone(using: str, sql: str, params: Any) -> Rows:
    """The rows of a statement that is its own transaction; it can be run again, so it may be prepared."""
    if can_go_together(using) and names.can_name(using):
        [(sql, params)] = names.by_name(using, [(sql, params)])
    return claimed_rows(using, sql, params)


def _fetched(cursor: Any) -> Rows:
    """All rows of a statement, if it returns any; reading ``description`` would make an object for each column."""
    return list(cursor.fetchall()) if cursor.cursor.pgresult.nfields else []


def text_array(values: Iterable[str]) -> str:
    """The text of a ``text[]``: psycopg takes ten times as long to write it, longer than the server takes to read."""
    escaped = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


def _load_times_quickly(cursor: Any) -> None:
    """Load times with psycopg's own loader: Django's takes longer than the claim itself."""
    if settings.USE_TZ and _TIMES is not None:
        cursor.cursor.adapters.register_loader(_TIMESTAMPTZ, _TIMES)


_TIMESTAMPTZ = psycopg.adapters.types["timestamptz"].oid
_TIMES = psycopg.adapters.get_loader(_TIMESTAMPTZ, psycopg.pq.Format.TEXT)


# ------------------------------------------------------------------------------------------------------- names


class _Named(NamedTuple):
    prepare: str
    execute: str


_FORGOTTEN = (
    errors.InvalidSqlStatementName,  # it is another server connection
    errors.DuplicatePreparedStatement,  # another client of the pooler had this server connection before
    errors.FeatureNotSupported,  # a migration changed the type of a returned column
)


class NamedStatements(ProcessMemory):
    """What this process knows about prepared statements.

    It counts how often each connection ran each statement, as long as the connection is open. And it knows the
    databases that lose prepared statements, until the process ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uses: WeakKeyDictionary[psycopg.Connection[Any], dict[str, int]] = WeakKeyDictionary()
        self.forgetful: set[str] = set()  # databases behind a pooler that loses prepared statements

    def forget(self) -> None:
        self.forgetful.clear()  # the counts belong to connections, which still have their prepared statements

    def can_name(self, using: str) -> bool:
        """Whether statements may be prepared: not if ``JOBQUEUE`` or Django's settings say that there is a pooler."""
        if using in self.forgetful or get_settings().POOLER:
            return False
        return not connections[using].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")

    def is_due(self, using: str, statements: Sequence[Statement]) -> bool:
        """Whether :meth:`by_name` will prepare a statement."""
        uses = self.uses.get(connections[using].connection, {})
        return any(uses.get(sql) == AFTER for sql, _ in statements)

    def by_name(self, using: str, statements: Sequence[Statement]) -> list[Statement]:
        """The statements to send instead of these: those that were run often enough are prepared."""
        connection = connections[using].connection
        uses = self.uses.get(connection)
        if uses is None:
            uses = self.uses[connection] = {}
        sent = []
        for sql, params in statements:
            times = uses.get(sql, 0)
            if times == AFTER:
                with connections[using].cursor() as cursor:
                    cursor.execute(_named(sql).prepare)
            if times <= AFTER and (times or len(uses) < MOST):
                uses[sql] = times + 1
            sent.append((_named(sql).execute if times >= AFTER else sql, params))
        return sent

    def is_forgotten(self, error: DatabaseError, using: str) -> bool:
        """Whether a statement failed only because it was prepared; it is sent in full from now on."""
        if not isinstance(error.__cause__, _FORGOTTEN):
            return False
        if using not in self.forgetful:
            self.forgetful.add(using)
            logger.info(
                "prepared statements are not kept: database %s: %s; statements are sent in full from now on",
                using,
                error_line(error),
                extra={"database": using, "error": str(error).strip()},
            )
        return True


@lru_cache(maxsize=1024)
def _named(sql: str) -> _Named:
    """The PREPARE and EXECUTE of a statement. The name is derived from its text, so it is the same for all clients."""
    name = "jobqueue_" + hashlib.sha256(sql.encode()).hexdigest()[:20]
    given: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        placeholder = found.group()
        if placeholder == "%%":
            return "%"
        if placeholder == "%s" or placeholder not in given:
            given.append(placeholder)
            return f"${len(given)}"
        return f"${given.index(placeholder) + 1}"

    body = _PLACEHOLDER.sub(numbered, sql)
    values = f"({', '.join(given)})" if given else ""
    return _Named(f"PREPARE {name} AS {body.strip()}", f"EXECUTE {name}{values}")


names = NamedStatements()
