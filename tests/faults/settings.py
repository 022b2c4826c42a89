"""Settings of the workers that these tests start; timings come from the environment, so that tests are quick.

``JOBQUEUE_SET_POLL_SECONDS=0.1`` sets ``JOBQUEUE["POLL_SECONDS"]``: the value is JSON.
"""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

PREFIX = "JOBQUEUE_SET_"
INSTALLED_APPS = [*_APPS, "tests.faults.app"]
JOBQUEUE = {
    name.removeprefix(PREFIX): json.loads(value) for name, value in os.environ.items() if name.startswith(PREFIX)
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"facts": {"()": "tests.faults.logs.Facts"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "facts"}},
    "loggers": {"django_jobqueue": {"handlers": ["stderr"], "level": "DEBUG"}},
}
