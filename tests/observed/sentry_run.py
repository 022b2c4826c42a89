"""Run by a test: a project with Sentry set up as the documentation says, and a worker in which handlers fail."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import django

django.setup()

from django_jobqueue import job, services  # noqa: E402
from django_jobqueue.handlers import Snooze  # noqa: E402
from django_jobqueue.states import JobState  # noqa: E402
from django_jobqueue.testing import JobQueueKit  # noqa: E402

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "follow-a-job.md"


def recipe() -> str:
    """The example under the heading of that page."""
    section = PAGE.read_text().split("\n## Sentry\n")[1]
    found = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


names: dict[str, Any] = {"os": os}
exec(recipe().replace('"https://key@sentry.example.com/1"', "os.environ['SENTRY_DSN']"), names)
sys.modules["recipe"] = type(sys)("recipe")
vars(sys.modules["recipe"]).update(names)


@job(queue="sentry", retry_limit=1)
def fails(order_id: int) -> None:
    raise ValueError(f"order {order_id} is gone")


@job(queue="sentry")
def snoozes() -> None:
    raise Snooze(3600)


@job(queue="sentry", retry_limit=0)
async def fails_later() -> None:
    raise LookupError("nothing there")


with JobQueueKit() as kit, kit.mode("real"):
    kit.wait_for(fails.send(order_id=7), JobState.FAILED)
    kit.wait_for(snoozes.send(), JobState.RETRY)
    kit.wait_for(fails_later.send(), JobState.FAILED)
    kit.wait_for(services.send("sentry", name="tests.missing"), JobState.FAILED)
names["sentry_sdk"].flush(10)
