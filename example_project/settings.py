"""Django settings of the shop. The server is that of libpq's own variables: ``PGHOST`` and so on.

eval "$(python -m example_project.postgres start)"
python -m example_project.manage migrate
"""

from __future__ import annotations

import os
from typing import Any

SECRET_KEY = "only for the demo"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "postgres"),
    }
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.admin",
    "django_jobqueue",
    "example_project.shop",
]
ROOT_URLCONF = "example_project.urls"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
STATIC_URL = "static/"
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
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

JOBQUEUE: dict[str, Any] = {
    "AROUND": "example_project.watching.around",
    "QUEUES": {
        "orders": {
            "policy": "key_strict_fifo",
            "retry_limit": 1,
            "retry_delay": 1,
            "dead_letter": "orders-dead",
            "warning_queue_size": 1_000,
            "description": "What customers ordered, in order per customer.",
        },
        "orders-dead": {"description": "Copies of orders that could not be shipped."},
        "emails": {"retry_limit": 5, "retry_backoff": True, "retry_delay_max": 600},
        "stock-report": {"policy": "exclusive", "description": "One at a time, and one is enough."},
    },
}
