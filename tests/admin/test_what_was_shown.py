"""A confirmed action takes the jobs that its page showed; jobs that changed since are counted and not changed."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.core import signing
from django.db import connection
from django.urls import reverse

from django_jobqueue import services
from django_jobqueue.admin.confirmations import Confirmation
from django_jobqueue.engine import paging
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Operation
from django_jobqueue.selection import Selection
from tests.admin.pages import BLOCKED, JOBS, act_url, choose, confirm, hidden, read
from tests.past import reread

pytestmark = pytest.mark.django_db(transaction=True)


def running(queue: Any, number: int) -> list[Job]:
    services.send_many(queue.name, [{"singleton_key": f"key-{place}"} for place in range(number)])
    return services.fetch(queue.name, number)


def fail(*jobs: Job) -> None:
    for job in jobs:
        services.fail(job, "it failed", for_good=True)


def fail_again(job: Job) -> None:
    services.retry(job.pk)
    fail(*services.fetch(job.queue_id))


def page(client: Any, action: str, *jobs: Job, across: int = 0, url: str = f"{JOBS}?state=dead", **more: Any) -> Any:
    return choose(client, action, *jobs, across=across, url=url, **more)


def finish(client: Any, response: Any) -> str:
    """The text of the operation's page when the operation has ended."""
    client.post(response.url.replace("change/", "advance/"))
    return read(client.get(response.url)).text


@pytest.mark.parametrize(("action", "becomes"), (("retry_jobs", "retry"), ("skip_jobs", "stopped")))
def test_select_all_takes_what_had_failed_when_the_page_was_shown(boss, queue, action, becomes):  # F89 B43
    jobs = running(queue, 6)
    fail(*jobs[:3])

    shown = page(boss, action, jobs[0], across=1)
    fail(*jobs[3:5])
    text = finish(boss, confirm(boss, shown))

    assert "All 3 jobs" in read(shown).text
    assert [reread(job).state for job in jobs[:5]] == [becomes] * 3 + ["failed"] * 2
    operation = Operation.objects.get()
    assert (operation.state, operation.moved, operation.details["came_later"]) == ("done", 3, 2)
    assert "reached this state after the confirmation was shown: 2. They were not changed." in text


def test_the_number_on_the_page_is_that_of_the_snapshot(boss, queue):  # B43
    jobs = running(queue, 2)
    fail(jobs[0])

    def fails_another_between_the_snapshot_and_the_count(execute: Any, sql: str, *args: Any) -> Any:
        found = execute(sql, *args)
        if "pg_current_snapshot()::text" in sql and reread(jobs[1]).state == "active":
            fail(jobs[1])
        return found

    with connection.execute_wrapper(fails_another_between_the_snapshot_and_the_count):
        shown = page(boss, "skip_jobs", jobs[0], across=1)

    assert [reread(job).state for job in jobs] == ["failed", "failed"]
    assert "All 1 jobs" in read(shown).text


def test_all_blocked_keys_are_those_that_were_shown(boss, fifo_queue):  # F89 B43
    jobs = running(fifo_queue, 4)
    fail(*jobs[:2])

    shown = page(boss, "skip_keys", jobs[0], across=1, url=BLOCKED)
    fail(jobs[2])
    response = confirm(boss, shown)
    text = finish(boss, response)

    assert [reread(job).state for job in jobs[:3]] == ["stopped", "stopped", "failed"]
    assert "reached this state after the confirmation was shown: 1." in text
    assert f'href="{BLOCKED}?"' in boss.get(response.url).content.decode()


@pytest.mark.parametrize(("action", "state"), (("cancel_jobs", "created"), ("delete_jobs", "completed")))
def test_cancel_and_delete_leave_alone_what_came_later(boss, queue, action, state):  # B43
    def make() -> Job:
        job = services.send(queue.name)
        assert job is not None
        if state == "completed":
            services.complete(services.fetch(queue.name)[0])
        return job

    url = f"{JOBS}?state={state}"
    first = make()
    shown = page(boss, action, first, across=1, url=url)
    later = make()
    text = finish(boss, confirm(boss, shown))

    assert not Job.objects.filter(pk=first.pk, state=state).exists()
    assert reread(later).state == state
    assert "They were not changed" in text


def test_nothing_is_said_when_nothing_came(boss, queue):
    jobs = running(queue, 2)
    fail(*jobs)

    text = finish(boss, confirm(boss, page(boss, "retry_jobs", jobs[0], across=1)))

    assert Operation.objects.get().details["came_later"] == 0
    assert "reached this state after" not in text


def test_what_was_counted_in_part_is_said(boss, queue, monkeypatch):
    monkeypatch.setattr(paging, "CHEAP", 0)
    monkeypatch.setattr(paging, "COUNTED", 2)
    jobs = running(queue, 4)
    shown = page(boss, "retry_jobs", jobs[0], across=1)
    fail(*jobs)

    text = finish(boss, confirm(boss, shown))

    assert "reached this state after the confirmation was shown: 2 of the latest 2." in text


def test_a_ticked_job_that_failed_again_is_refused(boss, queue):  # B43
    jobs = running(queue, 2)
    fail(*jobs)

    shown = page(boss, "skip_jobs", *jobs)
    fail_again(jobs[0])
    response = confirm(boss, shown)

    assert [reread(job).state for job in jobs] == ["failed", "stopped"]
    assert "refused: it changed after it was shown" in read(boss.get(response.url)).text


def test_a_job_that_failed_again_behind_its_own_page_is_left_alone(boss, queue):  # B43
    (job,) = running(queue, 1)
    fail(job)

    shown = boss.get(act_url(job, "skip"))
    fail_again(job)
    response = confirm(boss, shown)

    assert reread(job).state == "failed"
    assert "Nothing was changed: it changed after it was shown." in read(boss.get(response.url)).text


def test_a_page_that_is_shown_again_is_about_the_same_jobs(boss, queue):  # B43
    jobs = running(queue, 2)
    fail(jobs[0])

    shown = page(boss, "skip_jobs", jobs[0], across=1)
    fail(jobs[1])
    again = boss.get(shown.request["PATH_INFO"])
    finish(boss, confirm(boss, again))

    assert read(shown).text.count("All 1 jobs") == read(again).text.count("All 1 jobs") == 1
    assert [reread(job).state for job in jobs] == ["stopped", "failed"]


def test_a_page_is_confirmed_once(boss, queue):
    jobs = running(queue, 2)
    fail(*jobs)

    shown = page(boss, "retry_jobs", jobs[0], across=1)
    first = confirm(boss, shown)
    finish(boss, first)
    fail(*services.fetch(queue.name, 2))
    second = confirm(boss, shown, reason="again")

    assert first.url == second.url
    assert "This was confirmed before, by boss" in read(boss.get(second.url)).text
    assert "This was confirmed by boss" in read(boss.get(shown.request["PATH_INFO"])).text
    assert [reread(job).state for job in jobs] == ["failed", "failed"]
    assert Operation.objects.get().reason == "because"


def test_the_page_of_a_job_is_confirmed_once(boss, queue):
    (job,) = running(queue, 1)
    assert job.retry_limit is not None
    fail(job)

    shown = boss.get(act_url(job, "retry"))
    for _ in range(2):
        confirm(boss, shown)
        fail(*services.fetch(queue.name, 1))

    assert Operation.objects.get().moved == 1
    assert reread(job).retry_limit == (job.retry_limit or 0) + 1


def test_two_clicks_at_once_act_once(boss, queue, race):
    jobs = running(queue, 5)
    fail(*jobs)
    shown = page(boss, "retry_jobs", *jobs)
    client_of = partial(copy, boss)

    answers = race(4, lambda: confirm(client_of(), shown).url)

    assert len(set(answers)) == 1
    assert Operation.objects.get().moved == 5


@pytest.mark.parametrize(
    "spoil",
    (
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: "x" + token,
        lambda token: signing.dumps({"verb": "skip"}, salt="jobqueue.confirmation"),
        lambda token: signing.dumps(signing.loads(token, salt="jobqueue.confirmation"), salt="other"),
        lambda token: "nonsense",
    ),
)
def test_a_page_that_was_not_made_here_changes_nothing(boss, queue, spoil):  # B43
    (job,) = running(queue, 1)
    fail(job)
    path = page(boss, "skip_jobs", job, across=1).request["PATH_INFO"]
    token = path.rstrip("/").rpartition("/")[2]
    forged = path.replace(token, spoil(token))

    for send in (boss.get, boss.post):
        assert send(forged, {"reason": "x"}).url == JOBS
        assert "Nothing was changed: This page cannot be confirmed." in read(boss.get(JOBS)).text
    shown = boss.post(act_url(job, "skip"), {"reason": "x", "token": spoil(token)}, follow=True)
    assert "Nothing was changed: This page cannot be confirmed." in read(shown).text
    assert not Operation.objects.exists()


def test_a_page_of_another_job_is_refused(boss, queue):
    jobs = running(queue, 2)
    fail(*jobs)

    response = boss.post(act_url(jobs[1], "skip"), {**hidden(boss.get(act_url(jobs[0], "skip"))), "reason": "x"})

    assert response.status_code == 400
    assert not Operation.objects.exists()


def test_a_page_that_is_older_than_a_day_is_refused(boss, queue, monkeypatch):
    (job,) = running(queue, 1)
    fail(job)
    shown = page(boss, "skip_jobs", job)
    monkeypatch.setattr("django_jobqueue.admin.confirmations.MAX_AGE", -1)

    answer = confirm(boss, shown)

    assert "older than a day" in read(boss.get(answer.url)).text
    assert not Operation.objects.exists()


def test_a_page_of_a_database_that_was_restored_is_refused(boss, queue):
    (job,) = running(queue, 1)
    fail(job)
    asked = replace(Confirmation.of("skip", Selection(), using="default"), snapshot=f"1:{2**62}:")

    answer = boss.post(reverse("admin:jobqueue_job_confirm", args=[asked.token()]), {"reason": "x"})

    assert "it is newer than this database" in read(boss.get(answer.url)).text
    assert not Operation.objects.exists()


def test_more_jobs_than_an_address_can_hold_are_refused(boss, queue):
    given = {"action": "retry_jobs", "_selected_action": [str(uuid7()) for _ in range(500)], "index": 0}

    answer = boss.post(JOBS, given)

    assert answer.url == JOBS
    assert "Too many jobs were selected one by one" in read(boss.get(JOBS)).text


def test_a_page_that_waited_for_a_day_is_as_good(boss, queue):  # B43
    """The ids of transactions are never used again, so a snapshot stays valid."""
    jobs = running(queue, 40)
    fail(*jobs[:20])
    shown = page(boss, "skip_jobs", jobs[0], across=1)
    fail(*jobs[20:])

    finish(boss, confirm(boss, shown))

    assert {reread(job).state for job in jobs[:20]} == {"stopped"}
    assert {reread(job).state for job in jobs[20:]} == {"failed"}


def test_all_of_a_list_that_was_not_shown_here_cannot_be_chosen(boss, queue):
    jobs = running(queue, 1)
    fail(*jobs)

    refused = page(boss, "retry_jobs", jobs[0], across=1, shown="forged:token")

    assert "Select the jobs again." in read(refused).text
    assert not Operation.objects.exists()
