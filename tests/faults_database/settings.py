"""Django settings of the workers that these tests start; what varies comes from the environment."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS
from tests.settings import address

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        **address(os.environ.get("FAULTS_DSN", "")),
    }
}
INSTALLED_APPS = [*_APPS, "tests.faults_database.app"]
JOBQUEUE = json.loads(os.environ.get("FAULTS_JOBQUEUE", "{}"))
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "tests.faults_database.logs.JSONLine"}},
    "handlers": {
        "file": {
            "class": "logging.FileHandler",
            "filename": os.environ.get("FAULTS_LOG", os.devnull),
            "formatter": "line",
        }
    },
    "root": {"handlers": ["file"], "level": os.environ.get("FAULTS_LOG_LEVEL", "INFO")},
}
