"""Settings of the bookshop. The server is the one of libpq's variables, such as PGHOST."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
USE_TZ = True
TIME_ZONE = "Europe/Vienna"
ROOT_URLCONF = "bookshop.urls"
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "static_files"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "/admin/login/"
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = BASE_DIR / "mails"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # because it is fast

DATABASE = os.environ.get("BOOKSHOP_DATABASE", "bookshop")
TEST_DATABASE = {"MIGRATE": os.environ.get("BOOKSHOP_MIGRATE", "1") == "1"}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": DATABASE,
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {"pool": {"min_size": 1, "max_size": 4}},
        "TEST": TEST_DATABASE,
    },
    "reports": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": f"{DATABASE}_reports",
        "TEST": TEST_DATABASE,
    },
}
DATABASE_ROUTERS = ["reports.router.ReportsRouter"]

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rangefilter",
    "django_jobqueue",
    "accounts",
    "books",
    "reports",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
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

JOBQUEUE = {
    "QUEUES": {
        "orders": {"policy": "key_strict_fifo", "retry_limit": 1},
        "mails": {"retry_limit": 3, "retry_backoff": True},
    },
    "SCHEDULES": {"nightly": {"queue": "default", "cron": "0 3 * * *", "handler": "books.jobs.index_books"}},
}
