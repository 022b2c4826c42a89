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
    "django_jobqueue",
    "example_project.shop",
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
