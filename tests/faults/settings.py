"""Settings of the workers that these tests start; timings come from the environment, so that tests are quick.

``JOBQUEUE_SET_POLL_SECONDS=0.1`` sets ``JOBQUEUE["POLL_SECONDS"]``: the value is JSON. ``FAULTS_POOL=true`` gives the
database Django's own connection pool, and a second alias of the same database another.
"""

from __future__ import annotations

import json
import os
from copy import deepcopy

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES
from tests.settings import INSTALLED_APPS as _APPS

POOL = "FAULTS_POOL"
PREFIX = "JOBQUEUE_SET_"
DEBUG = json.loads(os.environ.get("FAULTS_DEBUG", "false"))
INSTALLED_APPS = [*_APPS, "tests.faults.app"]
JOBQUEUE = {
    name.removeprefix(PREFIX): json.loads(value) for name, value in os.environ.items() if name.startswith(PREFIX)
}
if POOL in os.environ:
    DATABASES["default"]["OPTIONS"] |= {"pool": json.loads(os.environ[POOL])}
    DATABASES["other"] = deepcopy(DATABASES["default"])
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"facts": {"()": "tests.faults.logs.Facts"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "facts"}},
    "loggers": {"django_jobqueue": {"handlers": ["stderr"], "level": "DEBUG"}},
}
