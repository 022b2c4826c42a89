"""Permissions on every URL, and texts that contain HTML or scripts."""

from __future__ import annotations

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from django_jobqueue import services
from django_jobqueue.models import BlockedKey, Job, Maintenance, Operation, Report, Schedule, Worker
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, JOBS, OPERATIONS, act_url, addresses, edit_url, job_url, read
from tests.factories import JobFactory, QueueFactory
from tests.past import records_unguarded, reread

pytestmark = pytest.mark.django_db

SECRET = "marzipan"


@pytest.fixture
def job(fifo_queue):
    return JobFactory(
        queue=fifo_queue,
        singleton_key="ada",
        state=JobState.FAILED,
        data={"word": SECRET},
        output={"word": SECRET},
        tags=["a"],
    )


@pytest.fixture
def everywhere(job):
    """Every URL of our pages, with rows that exist."""
    operation = services.begin_operation("retry", ids=[job.pk], operator="x", reason=SECRET)
    schedule = services.create_schedule("nightly", job.queue_id, "@daily", singleton_key="ada", data=[SECRET])
    worker = Worker.objects.create(name="ada")
    Maintenance.objects.get_or_create(pk=Maintenance.ONLY)
    return addresses(
        {
            "job": job.pk,
            "blockedkey": job.pk,
            "failuregroup": job.pk,
            "operation": operation.pk,
            "queue": job.queue_id,
            "schedule": schedule.name,
            "worker": worker.pk,
            "maintenance": "1",
            "report": str(Report.objects.create(page="figures", jobs=1).pk),
        }
    )


def strangers():
    plain = User.objects.create_user("plain", password="x")
    clerk = User.objects.create_user("clerk", password="x", is_staff=True)
    yield Client(), 302
    for user, status in ((plain, 302), (clerk, 403)):
        client = Client()
        client.force_login(user)
        yield client, status


def test_the_sweep_is_a_sweep(everywhere, job):
    assert len(everywhere) >= 15
    assert job_url(job) in everywhere
    assert act_url(job, "retry") in everywhere


def test_strangers_get_nothing_and_change_nothing(everywhere, job):  # F63 F64
    confirmed = {"confirmed": "1", "reason": "x", "json": "{}", "action": "retry_jobs", "index": "0",
                 "_selected_action": str(job.pk)}  # fmt: skip
    for client, status in strangers():
        for address in everywhere:
            for response in (client.get(address), client.post(address, confirmed)):
                assert response.status_code in (status, 405), address
                assert SECRET not in response.content.decode()
                assert "ada" not in response.content.decode()
    assert reread(job).state == "failed"
    assert Operation.objects.get().moved == 0


@pytest.mark.parametrize(
    ("action", "permission"),
    (
        ("retry_jobs", "retry_job"),
        ("skip_jobs", "skip_job"),
        ("cancel_jobs", "cancel_job"),
        ("delete_jobs", "delete_job"),
    ),
)
def test_each_action_has_a_permission_of_its_own(login, job, action, permission):  # F64
    given = {"action": action, "_selected_action": [str(job.pk)], "index": 0, "confirmed": 1, "reason": "x"}
    others = {"retry_job", "skip_job", "cancel_job", "delete_job"} - {permission}
    without, having = login("view_job", *others), login("view_job", permission, name="may")

    refused = without.post(JOBS, given)
    allowed = having.post(JOBS, given)

    assert (refused.status_code, allowed.status_code) == (403, 302)
    assert without.get(allowed.url).status_code == 403
    assert without.post(allowed.url, given).status_code == 403
    assert not Operation.objects.exists()
    assert having.post(allowed.url, given).status_code == 302
    assert Operation.objects.count() == 1
    assert action not in without.get(JOBS).content.decode()


@pytest.mark.parametrize("verb", ("retry", "skip", "cancel", "delete"))
def test_each_action_on_one_job_needs_its_permission(login, job, verb):
    client = login("view_job")

    assert client.get(act_url(job, verb)).status_code == 403
    assert client.post(act_url(job, verb), {"reason": "x"}).status_code == 403
    assert act_url(job, verb) not in client.get(job_url(job)).content.decode()
    assert reread(job).state == "failed"


def test_acting_needs_the_right_to_look(login, job):
    client = login("retry_job")

    assert client.post(act_url(job, "retry")).status_code == 403
    assert client.get(JOBS).status_code == 403


def test_blocked_keys_have_the_same_permissions(login, job):
    given = {"action": "skip_keys", "_selected_action": [str(job.pk)], "index": 0, "confirmed": 1, "reason": "x"}

    assert login("view_job", "retry_job").post(BLOCKED, given).status_code == 403
    assert login("view_blockedkey", name="other").get(BLOCKED).status_code == 200
    assert reread(job).state == "failed"


@pytest.mark.parametrize("lacking", ("edit_job_data", "see_job_data", "retry_job"))
def test_editing_data_needs_three_permissions(login, job, lacking):
    client = login("view_job", *({"edit_job_data", "see_job_data", "retry_job"} - {lacking}))

    assert client.get(edit_url(job)).status_code == 403
    assert client.post(edit_url(job), {"json": "{}"}).status_code == 403
    assert edit_url(job) not in client.get(job_url(job)).content.decode()
    assert reread(job).data == {"word": SECRET}


def test_on_no_page_at_all_is_data_shown_to_who_may_not_see_it(login, boss, everywhere, job):
    looking = ("view_job", "view_queue", "view_schedule", "view_worker", "view_operation", "view_maintenance")
    client = login(*looking, "change_schedule", "change_queue", "retry_job", "edit_job_data")
    with records_unguarded():
        Operation.objects.update(reason="")  # which is no data

    for address in everywhere:
        response = client.get(address, follow=True)
        assert SECRET not in response.content.decode(), address
    assert any(SECRET in boss.get(address).content.decode() for address in everywhere)


def test_who_may_not_see_data_sees_none_of_it(login, boss, job):
    boss.post(edit_url(job), {"json": f'{{"word": "{SECRET} too"}}'})
    edited = Operation.objects.get()
    client = login("view_job", "retry_job", "skip_job", "cancel_job", "delete_job")
    pages = [JOBS, f"{JOBS}?q={job.pk}", BLOCKED, OPERATIONS, job_url(job), act_url(job, "skip"),
             f"{OPERATIONS}{edited.pk}/change/"]  # fmt: skip

    for page in pages:
        response = client.get(page)
        assert response.status_code == 200
        assert SECRET not in response.content.decode(), page
    assert SECRET in boss.get(job_url(job)).content.decode()
    assert SECRET in boss.get(pages[-1]).content.decode()


def test_others_may_not_carry_on_an_operation(login, job):
    operation = services.begin_operation("retry", ids=[job.pk], operator="x")
    client = login("view_job", "skip_job")

    for what in ("advance", "stop", "resume"):
        assert client.post(f"{OPERATIONS}{operation.pk}/{what}/").status_code == 403
        assert client.get(f"{OPERATIONS}{operation.pk}/{what}/").status_code in (403, 405)
    assert reread(job).state == "failed"


def test_a_post_without_the_token_is_refused(job, everywhere):  # F65
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("boss", password="x"))
    given = {
        "action": "retry_jobs",
        "_selected_action": [str(job.pk)],
        "index": 0,
        "confirmed": 1,
        "reason": "x",
        "json": "{}",
    }

    for address in everywhere:
        assert client.post(address, given).status_code in (403, 405), address
    assert reread(job).state == "failed"


def test_a_get_with_the_parameters_of_an_action_does_nothing(boss, job, everywhere):  # F65
    for address in everywhere:
        boss.get(address, {"confirmed": 1, "reason": "x"})
    boss.get(JOBS, {"action": "retry_jobs", "_selected_action": str(job.pk), "confirmed": 1})

    assert reread(job).state == "failed"


# ----------------------------------------------------------------------------------------------------------- scripts

CORPUS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</textarea></title></style></script><script>alert(1)</script>",
    "javascript:alert(1)",
    '" onmouseover="alert(1)" x="',
    "{{ settings.SECRET_KEY }}{% debug %}",
    "\u202egnp.exe<b>",
    "<!--<script>",
    "%3Cscript%3Ealert(1)%3C/script%3E",
)


def is_inert(response):
    reader = read(response)
    assert reader.inline_scripts == 0
    for tag, attributes in reader.tags:
        assert tag not in ("b", "img", "iframe", "object") or (attributes.get("src") or "").startswith("/static/"), tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        for name in ("href", "src", "action", "formaction"):
            assert not (attributes.get(name) or "").lower().startswith(("javascript:", "data:")), (tag, attributes)
        if tag == "script":
            assert (attributes.get("src") or "").startswith(("/static/", "/admin/jsi18n/"))
    assert "only for tests" not in response.content.decode()


@pytest.mark.parametrize("text", CORPUS)
def test_texts_stay_texts(boss, text):  # F67
    queue = QueueFactory(policy="key_strict_fifo", name=text[:100], description=text)
    lane = {"queue": queue, "singleton_key": text, "name": text, "tags": [text], "group_key": text}
    attempt = {"attempt": text, "worker": text, "outcome": text, "error": text, "started": text, "ended": text}
    job = JobFactory(
        **lane,
        state=JobState.FAILED,
        error=text,
        note=text,
        assignee=text,
        progress=0.5,
        progress_text=text,
        data={text: [text, {text: text}]},
        output={text: text},
        attempts=[attempt],
        fingerprint=text[:40],
        source_queue=text[:100],
        source_key=text,
        source_id="01900000-0000-7000-8000-000000000000",
    )
    JobFactory(**lane, hold="lane")
    operation = services.begin_operation("skip", ids=[job.pk], operator=text, reason=text)
    schedule = Schedule.objects.create(
        name=text[:100], queue=queue, cron=text, timezone=text[:64], handler=text, data=[text], tags=[text],
        enabled=False, singleton_key=text, group_key=text, options={text: text},
    )  # fmt: skip
    Worker.objects.create(name=text, host=text, queues=[text], tags=[text], version=text[:40], exit_text=text,
                          stats={"done": text, "failed": text, "memory_mb": text})  # fmt: skip
    others = [
        f"/admin/jobqueue/{name}" for name in ("", "queue/", "schedule/", "worker/", "failuregroup/", "maintenance/")
    ]
    others += [reverse("admin:jobqueue_queue_change", args=[quote(queue.name)]),
               reverse("admin:jobqueue_schedule_change", args=[quote(schedule.name)])]  # fmt: skip
    for page in (*others, f"/admin/jobqueue/?{urlencode({'queue': text, 'period': text})}"):
        is_inert(boss.get(page))
    is_inert(boss.post(others[-2], {"description": text, "retry_limit": text}))
    is_inert(boss.post(others[-1], {"cron": text, "timezone": text, "data": text, "queue": text}))
    is_inert(boss.post("/admin/jobqueue/worker/stop/", {"name": text}, follow=True))
    pages = [JOBS, BLOCKED, OPERATIONS, job_url(job), act_url(job, "skip"), edit_url(job),
             f"{OPERATIONS}{operation.pk}/change/"]  # fmt: skip

    for page in pages:
        is_inert(boss.get(page))
    for name in ("queue", "handler", "key", "tag", "worker", "fingerprint", "q", "state", "created_at__range__gte"):
        is_inert(boss.get(JOBS, {name: text}))
    is_inert(boss.post(act_url(job, "skip"), {"reason": "", "token": text}, follow=True))
    is_inert(boss.post(edit_url(job), {"json": text, "reason": text}))
    skip = {"action": "skip_keys", "_selected_action": [str(job.pk)], "index": 0}
    is_inert(boss.post(BLOCKED, skip, follow=True))
    is_inert(boss.post(f"{BLOCKED}?{urlencode({'queue': text})}", {**skip, "select_across": 1}, follow=True))
    services.advance_operation(operation)
    is_inert(boss.get(pages[-1]))
    is_inert(boss.get(job_url(job)))
    assert text.strip() in read(boss.get(job_url(job))).text or "%" in text or "\u202e" in text
    assert Job.objects.count() == 2
    assert BlockedKey.objects.count() == 0
