"""``manage.py jobs alerts``: problems, what operators were told, and a test message."""

from __future__ import annotations

import pytest
from django.core import mail

from django_jobqueue import services
from django_jobqueue.models import Alert
from django_jobqueue.states import JobState
from tests.factories import JobFactory
from tests.webhooks import webhook

from .calling import jobs


@pytest.fixture
def alerts(settings):
    def choose(**options):
        settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": options}

    return choose


def test_a_test_message_is_sent_by_each_channel(db, alerts):
    with webhook() as hook:
        alerts(mail=["ops@example.com"], webhook=hook.url, url="https://shop.example.com/admin/")

        said = jobs("alerts", "--test")

    assert (said.code, said.out.splitlines()) == (0, ["sent  mail", "sent  webhook"])
    assert mail.outbox[0].subject == "[Django] This is a test of JOBQUEUE['ALERTS']: messages arrive here"
    assert mail.outbox[0].body.endswith("\nhttps://shop.example.com/admin/jobqueue/")
    assert hook.received[0]["problems"][0]["kind"] == "test"
    assert not Alert.objects.exists()


def test_a_test_message_that_cannot_be_delivered_says_why(db, alerts):
    alerts(webhook="http://127.0.0.1:1/T0KEN")

    said = jobs("alerts", "--test")

    assert said.code == 1
    assert said.out.strip() == "not sent  webhook: the webhook cannot be reached: [Errno 111] Connection refused"


def test_without_the_setting_nobody_is_told(db):
    assert jobs("alerts").out.strip() == "JOBQUEUE['ALERTS'] is not set, so operators are not told of problems."
    assert jobs("alerts", "--test").code == 1


def test_invalid_options_are_refused(db, alerts):
    alerts(webhook="ftp://example.com/T0KEN")

    said = jobs("alerts", "--test")

    assert said.code == 2
    assert "JOBQUEUE['ALERTS']['webhook'] must be a URL that begins with https:// or http://." in said.error
    assert "T0KEN" not in said.error


def test_problems_are_listed_with_what_was_told(fifo_queue, alerts):
    alerts(mail=["ops@example.com"])
    assert jobs("alerts").out.strip() == "The last check found no problem."
    job = JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="ada", error="ShopError: no card")
    services.send_alerts()

    said = jobs("alerts", "--json")

    assert said.code == 1
    (alert,) = said.json["alerts"]
    assert (alert["channel"], alert["kind"], alert["error"]) == ("mail", "blocked", "")
    assert alert["problem"].endswith(": ShopError: no card")

    services.skip(job, reason="x")
    services.send_alerts()
    assert jobs("alerts").code == 0


def test_a_pass_of_maintenance_by_cron_sends_alerts(fifo_queue, alerts):
    alerts(mail=["ops@example.com"])
    JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="ada")

    assert jobs("maintain", "--once").code == 0

    assert len(mail.outbox) == 1
