"""Django settings of the workers that are measured: like the tests', with the handlers of ``jobs.py``."""

from __future__ import annotations

import json
import os

from tests import settings as tests_settings
from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*tests_settings.INSTALLED_APPS, "tests.benchmarks"]
JOBQUEUE = json.loads(os.environ.get("BENCH_JOBQUEUE", "{}"))
