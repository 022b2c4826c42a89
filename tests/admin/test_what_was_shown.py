"""A confirmed action takes the jobs that its page showed; jobs that changed since are counted and not changed."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_jobqueue import services
from django_jobqueue.engine import paging
from django_jobqueue.models import Job, Operation
from tests.admin.pages import BLOCKED, JOBS, act_url, read
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


def hidden(response: Any) -> dict[str, Any]:
    """What the form of a confirmation would send."""
    fields: dict[str, Any] = {}
    for tag, given in read(response).tags:
        if tag == "input" and given.get("type") == "hidden" and given.get("name") != "csrfmiddlewaretoken":
            fields.setdefault(str(given["name"]), []).append(given.get("value") or "")
    return fields


def page(client: Any, action: str, *jobs: Job, across: int = 0, url: str = f"{JOBS}?state=dead") -> Any:
    given = {"action": action, "_selected_action": [str(job.pk) for job in jobs], "index": 0, "select_across": across}
    return client.post(url, given)


def confirm(client: Any, shown: Any, url: str = f"{JOBS}?state=dead", **more: Any) -> Any:
    return client.post(url, {**hidden(shown), "reason": "because", **more})


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
    response = confirm(boss, shown, url=BLOCKED)
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
    text = finish(boss, confirm(boss, shown, url=url))

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
    response = boss.post(act_url(job, "skip"), {**hidden(shown), "reason": "because"}, follow=True)

    assert reread(job).state == "failed"
    assert "Nothing was changed: it changed after it was shown." in read(response).text


def test_a_page_that_is_shown_again_shows_what_is_then(boss, queue):  # B43
    jobs = running(queue, 2)
    fail(jobs[0])

    shown = page(boss, "skip_jobs", jobs[0], across=1)
    fail(jobs[1])
    again = confirm(boss, shown, reason=" ")  # the page asks for a reason again, and shows two jobs
    finish(boss, confirm(boss, again))

    assert "All 2 jobs" in read(again).text
    assert [reread(job).state for job in jobs] == ["stopped", "stopped"]


@pytest.mark.parametrize("snapshot", ("", "1 OR 1=1", "9:1:", f"1:{2**62}:"))
def test_a_snapshot_that_is_none_changes_nothing_and_asks_again(boss, queue, snapshot):  # B43
    (job,) = running(queue, 1)
    fail(job)

    asked = confirm(boss, page(boss, "skip_jobs", job, across=1), snapshot=snapshot)

    assert not Operation.objects.exists()
    assert "Nothing was changed: snapshot:" in read(asked).text
    finish(boss, confirm(boss, asked))
    assert reread(job).state == "stopped"
    refused = boss.post(act_url(job, "delete"), {"snapshot": snapshot}, follow=True)
    assert "Nothing was changed: snapshot:" in read(refused).text


def test_a_page_that_waited_for_a_day_is_as_good(boss, queue):  # B43
    """The ids of transactions are never used again, so a snapshot stays valid."""
    jobs = running(queue, 40)
    fail(*jobs[:20])
    shown = page(boss, "skip_jobs", jobs[0], across=1)
    fail(*jobs[20:])

    finish(boss, confirm(boss, shown))

    assert {reread(job).state for job in jobs[:20]} == {"stopped"}
    assert {reread(job).state for job in jobs[20:]} == {"failed"}
