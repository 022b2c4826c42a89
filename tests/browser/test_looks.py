"""Every page, light, dark and narrow, with no, few and many rows: the browser logs no error, nothing overflows."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.models import Job, QueueMinute, Worker
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
    """Fill a shop with failures; returns one of the jobs that block a key."""
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


OTHERS = {
    "overview": "/admin/jobqueue/",
    **{
        name: f"/admin/jobqueue/{path}/"
        for name, path in (
            ("queues", "queue"),
            ("schedules", "schedule"),
            ("workers", "worker"),
            ("failures", "failuregroup"),
            ("health", "maintenance"),
        )
    },
}


def fill_others(fifo_queue, queue):
    """A week of minutes, workers in every state, and schedules."""
    now = timezone.now().replace(second=0, microsecond=0)
    QueueMinute.objects.bulk_create(
        [
            QueueMinute(
                queue=one,
                minute=now - timedelta(minutes=number),
                sent=60 + 50 * math.sin(number / 90),
                completed=58 + 50 * math.sin((number + 5) / 90),
                failed=number % 7 == 0,
                waiting=abs(200 * math.sin(number / 300)),
                blocked_keys=number % 12,
                waited=[0, 0, 5, 20, 30, 8, number % 4],
                ran=[0, 0, 0, 0, 12, 30, 6, number % 3],
            )
            for one in (fifo_queue, queue)
            for number in [*range(1, 120), *range(120, 60 * 24 * 7, 15)]
        ]
    )
    Worker.objects.create(name="web-1", host="app-1", pid=4711, queues=["orders"], version="0.1.0", capacity=8,
                          stats={"done": 1234, "failed": 7, "memory_mb": 81.2})  # fmt: skip
    Worker.objects.create(name="web-2", host="app-2", pid=4712, version="0.1.0", stopping_at=now)
    Worker.objects.create(name="web-3", host="app-2", heartbeat_at=now - timedelta(minutes=9))
    Worker.objects.create(name="web-0", stopped_at=now, exit_text="killed by SIGKILL")
    services.create_schedule("nightly", queue.name, "30 2 * * 1-5", timezone="Europe/Berlin", data={"report": "all"})
    services.create_schedule("hourly", queue.name, "@hourly", enabled=False)
    services.run_schedule("nightly")
    services.pause(fifo_queue.name)


@pytest.mark.parametrize("look", LOOKS)
def test_every_screen(open_tab, fifo_queue, queue, look):
    tab = open_tab(**LOOKS[look])
    lists = {"jobs": JOBS, "blocked keys": BLOCKED, "operations": OPERATIONS, **OTHERS}
    for name, address in lists.items():
        _look_at(tab, address, f"{name} empty {look}")

    job = fill(fifo_queue, queue)
    fill_others(fifo_queue, queue)
    cache.clear()
    operation = services.begin_operation("skip", ids=[job.pk], operator="olga", reason="because " * 30)
    services.stop_operation(operation)  # otherwise its page would continue it
    screens = {
        **OTHERS,
        "overview of a day": "/admin/jobqueue/?period=24h",
        "overview of a week": "/admin/jobqueue/?period=7d&queue=work",
        "queue": f"/admin/jobqueue/queue/{queue.name}/change/",
        "queue new": "/admin/jobqueue/queue/add/",
        "schedule": "/admin/jobqueue/schedule/nightly/change/",
        "schedule new": "/admin/jobqueue/schedule/add/",
        "jobs": JOBS,
        "jobs older": f"{JOBS}?older=100",
        "jobs filtered": f"{JOBS}?state=dead&tag=web",
        "blocked keys": BLOCKED,
        "job": job_url(job),
        "job running": job_url(Job.objects.filter(state="active").first()),
        "job skip": act_url(job, "skip"),
        "job edit": edit_url(job),
        "operation stopped": f"{OPERATIONS}{operation.pk}/change/",
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
