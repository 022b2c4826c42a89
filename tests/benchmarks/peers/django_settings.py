"""Django settings of the peers that need Django: connections stay open, which both recommend for throughput."""

from __future__ import annotations

import os

_NAME = os.environ["BENCH_PEER"]

SECRET_KEY = "only for benchmarks"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "CONN_MAX_AGE": None,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
if _NAME == "django-ox":
    INSTALLED_APPS = ["django_ox"]
    TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend"}}
else:
    INSTALLED_APPS = ["django_tasks_db"]
    TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},  # no line per task
}
