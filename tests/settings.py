"""Django settings of the tests.

The server is the one of ``JOBQUEUE_TEST_DSN``, else of libpq's own variables (``PGHOST`` and so
on). With neither, ``conftest.py`` starts one for the run and puts its address here; importing this
module starts nothing, because mypy imports it too.
"""

from __future__ import annotations

import os
from typing import Any

import django
from psycopg.conninfo import conninfo_to_dict


def address(dsn: str) -> dict[str, Any]:
    """The part of a database's settings a connection string says; libpq fills in the rest."""
    given = conninfo_to_dict(dsn)
    return {
        "NAME": given.pop("dbname", None) or os.environ.get("PGDATABASE") or "postgres",
        "HOST": given.pop("host", ""),
        "PORT": given.pop("port", ""),
        "USER": given.pop("user", ""),
        "PASSWORD": given.pop("password", ""),
        "OPTIONS": given,
    }


SECRET_KEY = "only for tests"
USE_TZ = True
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "TEST": {"NAME": "test_jobqueue"},
        **address(os.environ.get("JOBQUEUE_TEST_DSN", "")),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # because it is fast

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.admin",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rangefilter",
    "django_jobqueue",
]
MIDDLEWARE = [
    "example_project.csp.strict_policy",
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

JOBQUEUE: dict[str, Any] = {"SPARK_NICENESS": 1}  # tests have no time to go behind others
TASKS: dict[str, Any] = {"default": {"BACKEND": "django_jobqueue.tasks.JobQueueBackend", "QUEUES": []}}
if django.VERSION >= (6, 1):  # the successor of EMAIL_BACKEND; without it each mail is a warning
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.smtp.EmailBackend"}}
