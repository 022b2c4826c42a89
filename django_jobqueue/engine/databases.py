"""The database and the queue that a verb is given, and single statements on a database."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from ..conf import wrong_vendor
from ..models import Job, Queue
from ..process_memory import ProcessMemory
from ..text import check_text

Rows = list[tuple[Any, ...]]


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


def named(queue: object) -> str:
    """The name of a queue, given by its name or as a ``Queue``. Raises ``InvalidOption`` for what cannot be a name."""
    if type(queue) is str and queue.isascii() and "\0" not in queue:  # the usual case, checked quickly
        return queue
    if isinstance(queue, Queue):
        return queue.name
    return check_text(queue, option="queue", max_length=1_000_000, required=True)


def execute(using: str, sql: str, params: Any = None) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def rows(using: str, sql: str, params: Any = None) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())
