"""Settings of a project that is tested by Django's own runner."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.testing.shop"]
JOBQUEUE = {"QUEUES": {"shop-mails": {}, "shop-orders": {"policy": "key_strict_fifo"}}}
DATABASES["default"]["TEST"] = {"NAME": "test_jobqueue_runner"}  # noqa: F405
