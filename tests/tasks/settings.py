"""Settings of the processes that these tests start."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.tasks.app"]
TASKS = {"default": {"BACKEND": "django_jobqueue.tasks.JobQueueBackend", "QUEUES": ["default"]}}
JOBQUEUE = {"POLL_SECONDS": 0.1}
