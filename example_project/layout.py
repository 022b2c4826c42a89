"""Whether the demo's database was made by the migrations of this code.

Until 0.1.0, a change of the schema changes ``0001_initial.py``. ``migrate`` does not notice that, because it knows
migrations by name. So the demo stores a digest of the files that made its database, and compares it with the code.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql

from .postgres import Server

APPS = {"jobqueue": "django_jobqueue.migrations", "shop": "example_project.shop.migrations"}
RECORD = "demo_layout"


class DatabaseInUse(Exception):
    """The database cannot be renamed, because a session of another program is connected to it."""


def is_current(server: Server) -> bool:
    """Whether every applied migration has the same text as in this code. True for a database without migrations."""
    with psycopg.connect(server.dsn) as connection:
        if not _exists(connection, "django_migrations"):
            return True
        applied = connection.execute(
            "SELECT app || '.' || name FROM django_migrations WHERE app = ANY(%s)", [list(APPS)]
        ).fetchall()
        recorded = _recorded(connection)
    code = digests()
    return all(name in code and recorded.get(name) == code[name] for (name,) in applied)


def record(server: Server) -> None:
    """Store in the database the digests of the migrations that made it. Call it after ``migrate``."""
    with psycopg.connect(server.dsn) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {RECORD} (migration text PRIMARY KEY, digest text NOT NULL)")
        cursor.executemany(f"INSERT INTO {RECORD} VALUES (%s, %s) ON CONFLICT DO NOTHING", list(digests().items()))


def set_aside(server: Server) -> str:
    """Rename the database, create an empty one in its place, and return the new name of the old one."""
    name = f"{server.database}_{datetime.now():%Y%m%d_%H%M%S}"  # noqa: DTZ005 - local time, for the user
    old, new = sql.Identifier(server.database), sql.Identifier(name)
    with psycopg.connect(server.dsn, dbname="template1", autocommit=True) as connection:
        try:
            connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(old, new))
        except psycopg.errors.ObjectInUse:
            raise DatabaseInUse from None
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(old))
    return name


def digests() -> dict[str, str]:
    """A digest of each migration of this code, by app and name."""
    return {
        f"{app}.{path.stem}": sha256(path.read_bytes()).hexdigest()
        for app, package in APPS.items()
        for path in _files(package)
    }


def _files(package: str) -> list[Path]:
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return sorted(path for place in places or () for path in Path(place).glob("[0-9]*.py"))


def _recorded(connection: psycopg.Connection) -> dict[str, str]:
    if not _exists(connection, RECORD):
        return {}
    return dict(connection.execute(f"SELECT migration, digest FROM {RECORD}").fetchall())


def _exists(connection: psycopg.Connection, table: str) -> bool:
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table]).fetchone()
    return found is not None and bool(found[0])
