"""The ways to run a project that a nemesis is tried with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Configuration:
    settings: dict[str, Any] = field(default_factory=dict)  # see settings.py
    version: int | None = None  # of PostgreSQL; the newest there is
    pooler: bool = False  # PgBouncer in transaction mode before the database
    schema: str = ""  # all tables lie there, found by search_path
    without: frozenset[str] = frozenset()  # strikes that cannot be done there


FAILOVERS = frozenset({"fail_over", "fail_over_without_the_last_seconds"})
CONFIGURATIONS = {
    "default": Configuration(),
    "pool": Configuration({"OPTIONS": {"pool": True}, "DATABASE": {"CONN_MAX_AGE": 0}}),
    "binding": Configuration({"OPTIONS": {"server_side_binding": True}}),
    "repeatable-read": Configuration({"OPTIONS": {"isolation_level": "REPEATABLE_READ"}}),
    "serializable": Configuration({"OPTIONS": {"isolation_level": "SERIALIZABLE"}}),
    "pgbouncer": Configuration({"JOBQUEUE": {"POOLER": True}}, pooler=True, without=FAILOVERS),
    "schema": Configuration(schema="elsewhere"),
    "no-tz": Configuration({"USE_TZ": False}),
    "postgresql-15": Configuration(version=15),
    "postgresql-16": Configuration(version=16),
    "postgresql-18": Configuration(version=18),
}
