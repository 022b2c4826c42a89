"""What to do about an error of the database that the project can fix: missing tables or rights, a wrong address."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, OperationalError, ProgrammingError, connections, router
from psycopg import errors

from .process_memory import ProcessMemory

P = ParamSpec("P")
T = TypeVar("T")

APP = "django_jobqueue"
MIN_POSTGRESQL = 15
RIGHTS = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}; "
    "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
)

# What libpq and the server say when no connection can be opened. A server that speaks another language than English
# gets the last advice.
_NO_CONNECTION = re.compile(r"connection (failed|is bad|timeout)|failed to resolve host", re.IGNORECASE)
_REASONS = (
    (
        r'database "(?P<name>.*)" does not exist',
        "PostgreSQL has no database {name!r}: create it, or correct NAME in {settings}.",
    ),
    (
        r'password|authentication|pg_hba|no encryption|role ".*" does not exist',
        "PostgreSQL refused the login: correct USER and PASSWORD in {settings}.",
    ),
    (
        r"too many (clients|connections)|remaining connection slots",
        "All connections are in use: close some, or raise max_connections of the server.",
    ),
    (r"resolve host|translate host", "This host is unknown: correct HOST in {settings}."),
    (r"starting up|shutting down|recovery mode", "PostgreSQL is starting or stopping: try again."),
)
_UNREACHABLE = "Start PostgreSQL there, or correct HOST and PORT in {settings}."


class MigratingDatabases(ProcessMemory):
    """The databases that ``migrate`` is working on in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.aliases: set[str] = set()

    def forget(self) -> None:
        self.aliases.clear()


migrating = MigratingDatabases()


class DatabaseNotReady(ImproperlyConfigured, ProgrammingError):
    """The tables of this app are missing, or the role may not use them."""


def explained(verb: Callable[P, T]) -> Callable[P, T]:
    """The verb, with errors of the database that say what to do."""

    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return verb(*args, **kwargs)
        except (DatabaseError, InterfaceError) as error:
            explain(error, kwargs.get("using"))
            raise

    return call


def explain(error: BaseException, using: Any = None) -> None:
    """Put what to do into the message of the error.

    Raises ``DatabaseNotReady`` instead if tables or rights are missing: an ``ImproperlyConfigured`` that is a
    ``ProgrammingError`` too. Other errors keep their class, by which callers decide whether to try again.
    """
    if isinstance(error, DatabaseNotReady):
        return
    sentence = explanation(error, using)
    if sentence and isinstance(error, ProgrammingError):
        raise DatabaseNotReady(sentence) from error.__cause__
    if sentence:
        error.args = (sentence,)


def explanation(error: BaseException, using: Any = None) -> str:
    """What is wrong and what to do, in one line; empty for an error that says nothing about the installation."""
    alias = using if isinstance(using, str) else _default_alias()
    cause = error.__cause__
    if isinstance(cause, errors.UndefinedTable | errors.UndefinedColumn | errors.InvalidSchemaName):
        return _no_tables(str(error), alias) if "jobqueue_" in str(error) else ""
    if isinstance(cause, errors.InsufficientPrivilege):
        return _no_rights(str(error), alias) if "jobqueue_" in str(error) else ""
    if isinstance(cause, errors.ReadOnlySqlTransaction):
        return (
            f"The database {alias!r} is read-only ({_first_line(str(error))}). Jobs are sent, changed and run on the "
            "primary: let db_for_write() of the router return its alias for the app 'jobqueue', or pass its alias as "
            "using= or --database."
        )
    if isinstance(error, OperationalError) and _NO_CONNECTION.search(str(error)):
        return _no_connection(str(error), alias)
    return ""


def _default_alias() -> str:
    from .models import Job

    return router.db_for_write(Job)


def _no_tables(message: str, alias: str) -> str:
    where = "" if alias == "default" else f" --database {alias}"
    if not apps.is_installed(APP):
        return f"{APP!r} is not in INSTALLED_APPS: add it, then run manage.py migrate{where}."
    version = getattr(connections[alias], "pg_version", MIN_POSTGRESQL * 10_000)
    if version < MIN_POSTGRESQL * 10_000:
        return f"Database {alias!r} is PostgreSQL {version // 10_000}; {MIN_POSTGRESQL} or later is required."
    data_migration = (
        " The migration that calls django_jobqueue needs ('jobqueue', '0001_initial') in its dependencies."
        if alias in migrating.aliases
        else ""
    )
    return (
        f"The tables of django_jobqueue are missing or old in the database {alias!r} ({_first_line(message)}): "
        f"run manage.py migrate{where}." + data_migration
    )


def _role(alias: str) -> str:
    """The role that has connected. The settings may leave it to PGUSER or to the system."""
    opened = connections[alias].connection
    if opened is None:
        return connections[alias].settings_dict.get("USER") or "the role of this process"
    name = str(opened.info.user)
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else connections[alias].ops.quote_name(name)


def _no_rights(message: str, alias: str) -> str:
    statements = RIGHTS.format(schema="public", role=_role(alias))
    return (
        f"The database {alias!r} refuses what django_jobqueue needs ({_first_line(message)}). "
        f"The owner of its tables can allow it: {statements}"
    )


def _no_connection(message: str, alias: str) -> str:
    line = _first_line(message)
    settings = f"DATABASES[{alias!r}]"
    advice, facts = _UNREACHABLE, dict[str, str]()
    for pattern, text in _REASONS:
        if found := re.search(pattern, line):
            advice, facts = text, found.groupdict()
            break
    return f"The database {alias!r} cannot be reached. {advice.format(settings=settings, **facts)} ({line})"


def _first_line(message: str) -> str:
    return " ".join(next(iter(message.strip().splitlines()), "").split())
