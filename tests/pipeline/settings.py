"""Settings of a worker that archives every night."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.pipeline.app"]
JOBQUEUE = {"ARCHIVE": True, "LAKE": os.environ["PIPELINE_LAKE"], "SPARK_NICENESS": 1, "POLL_SECONDS": 0.1}
