"""Hot statements by name: planned once for a connection instead of each time, which took as long as to run them.

Only in transactions of our own, which can be run again. A pooler may give each transaction another connection of the
server, which does not know the name: then that database's statements are sent in full from there on.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from django.db import DatabaseError, connections
from psycopg import errors

from ..conf import get_settings

logger = logging.getLogger("django_jobqueue")

Statement = tuple[str, Any]

AFTER = 5  # what a connection is asked for less often is not worth a name
MOST = 200  # statements counted for one connection

_PLACEHOLDER = re.compile(r"%s|%\((\w+)\)s|%%")
_uses: WeakKeyDictionary[psycopg.Connection[Any], dict[str, int]] = WeakKeyDictionary()
_forgetful: set[str] = set()  # databases behind something that loses names


class _Named(NamedTuple):
    prepare: str
    execute: str


def can_name(using: str) -> bool:
    """Whether it is any use: not where the project says that a pooler is between, by our setting or by Django's."""
    if using in _forgetful or get_settings().POOLER:
        return False
    return not connections[using].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")


def is_due(using: str, given: Sequence[Statement]) -> bool:
    """Whether :func:`by_name` will prepare something."""
    uses = _uses.get(connections[using].connection, {})
    return any(uses.get(sql) == AFTER for sql, _ in given)


def by_name(using: str, given: Sequence[Statement]) -> list[Statement]:
    """What to send instead of these statements; what was asked for often enough is prepared."""
    connection = connections[using].connection
    uses = _uses.get(connection)
    if uses is None:
        uses = _uses[connection] = {}
    sent = []
    for sql, params in given:
        times = uses.get(sql, 0)
        if times == AFTER:
            with connections[using].cursor() as cursor:
                cursor.execute(_named(sql).prepare)
        if times <= AFTER and (times or len(uses) < MOST):
            uses[sql] = times + 1
        sent.append((_named(sql).execute if times >= AFTER else sql, params))
    return sent


def is_forgotten(error: DatabaseError, using: str) -> bool:
    """Whether a statement failed only because it was sent by name; it will be sent in full from now on."""
    if not isinstance(error.__cause__, _FORGOTTEN):
        return False
    if using not in _forgetful:
        _forgetful.add(using)
        logger.info("statements are sent in full", extra={"database": using, "error": str(error).strip()})
    return True


_FORGOTTEN = (
    errors.InvalidSqlStatementName,  # another connection of the server
    errors.DuplicatePreparedStatement,  # one that another client of the pooler had before
    errors.FeatureNotSupported,  # a migration changed the type of what it returns
)


@lru_cache(maxsize=1024)
def _named(sql: str) -> _Named:
    """The name says what the statement is, so that no two clients ever mean different ones by it."""
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
