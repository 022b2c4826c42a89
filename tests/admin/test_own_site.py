"""The pages on an admin site of the project: no link, form or redirect leaves that site."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.urls import reverse

from django_jobqueue import services
from django_jobqueue.admin import JobAdmin, register_pages
from django_jobqueue.models import Job, Report, Worker
from django_jobqueue.states import JobState
from tests.admin.own_site import site
from tests.admin.pages import addresses, read
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db

PREFIX = "/staff/console/"
ELSEWHERE = ("/static/", "?", "#")


@pytest.fixture(params=("own_site", "two_sites"), autouse=True)
def urls(request: pytest.FixtureRequest, settings: Any) -> None:
    settings.ROOT_URLCONF = f"tests.admin.{request.param}"


@pytest.fixture
def ids(fifo_queue, queue) -> dict[str, Any]:
    """A row for each page; every kind of link is on one of them."""
    services.update_queue(fifo_queue.name, dead_letter=queue.name, warning_queue_size=1)
    blocker = JobFactory(
        queue=fifo_queue, singleton_key="a", state=JobState.FAILED, fingerprint="f" * 16, error="broken"
    )
    waiting = JobFactory(queue=fifo_queue, singleton_key="a", name="ship", tags=["blue"])
    worker = Worker.objects.create(name="host-1", version="0.1.0", capacity=8)
    JobFactory(queue=queue, state=JobState.ACTIVE, assignee=worker.name)
    JobFactory(queue=queue, source_id=waiting.pk, source_queue=fifo_queue.name, source_key="a")
    schedule = services.create_schedule("nightly", queue.name, "@daily")
    services.run_schedule(schedule.name)
    operation = services.begin_operation("retry", ids=[waiting.pk, blocker.pk], operator="boss")
    report = Report.objects.create(jobs=1, page="<p>report</p>")
    return {
        "job": blocker.pk,
        "blockedkey": blocker.pk,
        "failuregroup": blocker.pk,
        "queue": fifo_queue.name,
        "schedule": schedule.name,
        "worker": worker.pk,
        "operation": operation.pk,
        "report": report.pk,
        "maintenance": 1,
    }


def targets(response: Any) -> list[str]:
    """Where the links, forms and scripts of a page lead."""
    names = ("href", "action", "src", "data-jq-pulse-url", "data-jq-body-url", "data-jq-advance")
    return [value for _, given in read(response).tags for name in names if (value := given.get(name))]


def astray(response: Any) -> list[str]:
    if response.status_code == 302:
        return [] if response["Location"].startswith(PREFIX) else [response["Location"]]
    if not response["Content-Type"].startswith("text/html"):
        return []
    return [target for target in targets(response) if target != "/" and not target.startswith((PREFIX, *ELSEWHERE))]


def test_no_page_leads_to_another_site(boss, ids):
    pages = [
        PREFIX,
        f"{PREFIX}jobqueue/",
        *addresses(ids, site),
        reverse("admin:jobqueue_schedule_add", current_app=site.name),
    ]

    answers = {page: boss.get(page) for page in pages}

    assert len(answers) > 30
    assert {
        page: answer.status_code for page, answer in answers.items() if answer.status_code not in (200, 302, 403, 405)
    } == {}
    assert {page: left for page, answer in answers.items() if (left := astray(answer))} == {}


def test_no_action_leads_to_another_site(boss, ids):
    jobs = f"{PREFIX}jobqueue/job/"
    posts = {
        f"{jobs}{ids['job']}/act/retry/": {"snapshot": services.current_snapshot()},
        f"{jobs}{ids['job']}/edit/": {"json": "{}", "reason": ""},
        f"{PREFIX}jobqueue/queue/{ids['queue']}/pause/": {},
        f"{PREFIX}jobqueue/queue/{ids['queue']}/resume/": {},
        f"{PREFIX}jobqueue/schedule/nightly/run/": {},
        f"{PREFIX}jobqueue/schedule/nightly/switch/": {"enabled": "0"},
        f"{PREFIX}jobqueue/worker/stop/": {"name": "none"},
        f"{PREFIX}jobqueue/operation/{ids['operation']}/stop/": {},
        f"{PREFIX}jobqueue/operation/{ids['operation']}/resume/": {},
        f"{PREFIX}jobqueue/operation/{ids['operation']}/advance/": {},
        jobs: {
            "action": "cancel_jobs",
            "_selected_action": [str(Job.objects.filter(state="created").latest().pk)],
            "confirmed": "1",
            "reason": "",
            "snapshot": services.current_snapshot(),
        },
    }

    answers = {page: boss.post(page, data) for page, data in posts.items()}

    assert {page: answer.status_code for page, answer in answers.items()} == dict.fromkeys(posts, 302)
    assert {page: left for page, answer in answers.items() if (left := astray(answer))} == {}
    for page, answer in answers.items():
        assert astray(boss.get(answer["Location"])) == [], page


def test_a_class_of_the_project_stays_registered():
    class OwnJobAdmin(JobAdmin):
        pass

    own = admin.AdminSite(name="own")
    own.register(Job, OwnJobAdmin)

    register_pages(own)

    assert type(own.get_model_admin(Job)) is OwnJobAdmin
    assert own.is_registered(Report)
