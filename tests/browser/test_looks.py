"""Every screen, light, dark and on a phone, with nothing, little and much on it: no complaint, nothing sticks out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, JOBS, OPERATIONS, act_url, edit_url, job_url
from tests.factories import JobFactory

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 27, in ship_order
    charge(order.card)
  File "/srv/shop/payments.py", line 88, in charge
    raise ShopError("the card has expired")
shop.errors.ShopError: the card has expired
"""
LOOKS: dict[str, dict[str, Any]] = {"light": {}, "dark": {"dark": True}, "narrow": {"width": 390, "height": 844}}


def attempts(begin, number):
    return [
        {
            "attempt": place + 1,
            "worker": f"web-{place}",
            "started": (begin + timedelta(seconds=5 + 20 * place)).isoformat(),
            "ended": (begin + timedelta(seconds=9 + 20 * place)).isoformat(),
            "outcome": "error",
            "error": TRACEBACK,
        }
        for place in range(number)
    ]


def fill(fifo_queue, queue):
    """A shop with some trouble; one of the jobs that block a key."""
    blocked = []
    for number in range(12):
        sent = timezone.now() - timedelta(hours=number + 1)
        lane = {"queue": fifo_queue, "singleton_key": f"customer-{number}", "name": "ship_order"}
        blocked.append(
            JobFactory(
                **lane,
                state=JobState.FAILED,
                error=TRACEBACK,
                attempts=attempts(sent, 3),
                attempt=3,
                created_at=sent,
                started_at=sent + timedelta(seconds=5),
                assigned_at=sent + timedelta(seconds=45),
                attempt_finished_at=sent + timedelta(seconds=49),
                finalized_at=sent + timedelta(seconds=49),
                fingerprint="abc",
                data={
                    "order": number,
                    "card": {"holder": "Ada", "token": "tok_123"},
                    "items": [{"sku": f"A-{item}", "number": item} for item in range(5)],
                    "note": "Please deliver before noon, " * 8,
                },
                tags=["web", "eu"],
            )
        )
        for _ in range(number % 5):
            JobFactory(**lane, hold="lane")
    JobFactory(queue=fifo_queue, singleton_key="k" * 255, state=JobState.FAILED, error="x" * 500, name="n" * 255)
    states = ("completed", "created", "active", "cancelled", "retry")
    Job.objects.bulk_create([Job(queue=queue, name="send_email", policy="standard") for _ in range(260)])
    for state in states:
        JobFactory(queue=queue, name="send_email", state=state, data={"to": "Ada"})
    return blocked[4]


@pytest.mark.parametrize("look", LOOKS)
def test_every_screen(open_tab, fifo_queue, queue, look):
    tab = open_tab(**LOOKS[look])
    for name, address in (("jobs", JOBS), ("blocked keys", BLOCKED), ("operations", OPERATIONS)):
        _look_at(tab, address, f"{name} empty {look}")

    job = fill(fifo_queue, queue)
    operation = services.begin_operation("skip", ids=[job.pk], operator="olga", reason="because " * 30)
    screens = {
        "app": "/admin/jobqueue/",
        "jobs": JOBS,
        "jobs older": f"{JOBS}?older=100",
        "jobs filtered": f"{JOBS}?state=dead&tag=web",
        "blocked keys": BLOCKED,
        "job": job_url(job),
        "job running": job_url(Job.objects.filter(state="active").first()),
        "job skip": act_url(job, "skip"),
        "job edit": edit_url(job),
        "operation running": f"{OPERATIONS}{operation.pk}/change/",
        "operations": OPERATIONS,
    }

    for name, address in screens.items():
        _look_at(tab, address, f"{name} {look}")


def _look_at(tab, address, name):
    response = tab.page.goto(tab.base + address)
    assert response.headers["content-security-policy"] == "default-src 'self'"
    assert response.status == 200
    tab.page.wait_for_load_state()
    tab.picture(name)
    assert tab.overflow() <= 0, name
