"""Django settings of the shop. libpq's environment variables (``PGHOST`` and others) choose the database server.

eval "$(python -m example_project.postgres start)"
python -m example_project.manage migrate
"""

from __future__ import annotations

import os
from typing import Any

SECRET_KEY = "only for the demo"
DEBUG = True  # shows errors in the browser, and serves static files
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "example_project.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "postgres"),
    }
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rangefilter",
    "django_jobqueue",
    "example_project.shop",
]
MIDDLEWARE = [
    "example_project.csp.strict_policy",
    "django_jobqueue.middleware.RequestIdMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"django.server": {"level": "WARNING"}}}

# The user of the admin, whom ``make demo`` creates and the shop's page names.
DEMO_USER = DEMO_PASSWORD = "admin"

HOUR = 60 * 60
JOBQUEUE: dict[str, Any] = {
    "AROUND": "example_project.watching.around",
    "CARRY": ["django_jobqueue.carriers.RequestId"],
    "QUEUE_DEFAULTS": {"delete_after_seconds": HOUR},  # customers keep ordering, so do not keep all jobs
    "QUEUES": {
        "orders": {
            "policy": "key_strict_fifo",
            "retry_limit": 1,
            "retry_delay": 1,
            "dead_letter": "orders-dead",
            "warning_queue_size": 1_000,
            "description": "Ships orders, in order per customer.",
        },
        "orders-dead": {"description": "Copies of orders that could not be shipped."},
        "payments": {
            "policy": "key_strict_fifo",
            "retry_limit": 1,
            "retry_delay": 2,
            "description": "Takes payments, in order per customer.",
        },
        "emails": {
            "retry_limit": 3,
            "retry_delay": 2,
            "retry_backoff": True,
            "retry_delay_max": 600,
            "dead_letter": "emails-dead",
            "description": "Sends mails.",
        },
        "emails-dead": {"description": "Copies of mails that could not be sent."},
        "exports": {"description": "Long exports, with progress."},
        "accidents": {"policy": "exclusive", "description": "Kills a worker process, to show what happens then."},
        "rates": {"description": "Fetches exchange rates with an async handler."},
        "stock-report": {"policy": "exclusive", "description": "One job at a time, waiting or running."},
    },
    "SCHEDULES": {
        "nightly-stock-report": {
            "queue": "stock-report",
            "cron": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "handler": "stock_report",
        },
        "rates": {
            "queue": "rates",
            "cron": "* * * * *",
            "handler": "fetch_rates",
            "data": {"currencies": ["USD", "CHF", "JPY"]},
        },
    },
}
TASKS = {"default": {"BACKEND": "django_jobqueue.tasks.JobQueueBackend", "QUEUES": ["emails"]}}
