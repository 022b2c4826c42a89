"""Django settings of all processes of a nemesis; what varies comes from the environment as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from psycopg import IsolationLevel

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS
from tests.settings import address

_given = json.loads(os.environ.get("NEMESIS_SETTINGS", "{}"))


def database(dsn: str) -> dict[str, Any]:
    """The settings of a database at that address."""
    found = address(dsn)
    options = {**found.pop("OPTIONS", {}), **_given.get("OPTIONS", {})}
    if "isolation_level" in options:
        options["isolation_level"] = IsolationLevel[options["isolation_level"]]
    return {"ENGINE": "django.db.backends.postgresql", **found, "OPTIONS": options, **_given.get("DATABASE", {})}


DATABASES = {"default": database(os.environ.get("NEMESIS_DSN", ""))}
INSTALLED_APPS = [*_APPS, "tests.nemesis.app"]
USE_TZ = _given.get("USE_TZ", True)
# Seconds are shorter than the defaults, in the same proportions. Strikes are not the fault of jobs, so none of them is
# put aside for its crashes.
JOBQUEUE = {
    "WORKER_HEARTBEAT_SECONDS": 0.5,
    "WORKER_FENCE_SECONDS": 3.0,
    "WORKER_UNLOCKED_SECONDS": 4.5,
    "WORKER_LOST_SECONDS": 8.0,
    "POLL_SECONDS": 0.25,
    "EXPIRE_GRACE_SECONDS": 1.0,
    "STOP_GRACE_SECONDS": 5,
    "MONITOR_SECONDS": 2,
    "CRASH_LIMIT": 1_000,
    **_given.get("JOBQUEUE", {}),
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "tests.faults_database.logs.JSONLine"}},
    "handlers": {
        "file": {
            "class": "logging.FileHandler",
            "filename": os.environ.get("NEMESIS_LOG", os.devnull),
            "formatter": "line",
        }
    },
    "root": {"handlers": ["file"], "level": "INFO"},
}
