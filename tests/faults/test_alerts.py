"""Alerts of real workers: told once, by a thread that no other work waits for."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.models import Alert, Worker
from django_jobqueue.states import JobState
from tests.waiting import until
from tests.webhooks import webhook

from .conftest import LANES, ends, send

pytestmark = pytest.mark.django_db(transaction=True)


def test_one_of_two_workers_tells_of_a_blocked_key_while_the_webhook_hangs(start):
    with webhook() as hook:
        hook.answers.clear()
        for _ in range(2):
            start(ALERTS={"webhook": hook.url})
        job = services.send(LANES, {"unknown": 1}, name="lane-work", singleton_key="ada", retry_limit=0)
        assert job is not None
        ends(job, JobState.FAILED)
        until(lambda: hook.received, "the alert is sent")

        beats = dict(Worker.objects.values_list("name", "heartbeat_at"))
        until(
            lambda: all(beats[name] < at for name, at in Worker.objects.values_list("name", "heartbeat_at")),
            "heartbeats are sent while the webhook does not answer",
            2,
        )
        ends(send("work"), JobState.COMPLETED)
        hook.answers.set()
        until(lambda: Alert.objects.get().is_told, "the delivery is recorded")
        services.skip(job, reason="refunded")
        until(lambda: len(hook.received) == 2, "the end is told")

        assert [problem["status"] for sent in hook.received for problem in sent["problems"]] == ["problem", "over"]
