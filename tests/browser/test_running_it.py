"""An operator at work: queues, failures, workers, schedules, and a first page that is refreshed."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from django_jobqueue import services
from django_jobqueue.models import Job, Queue, Schedule, Worker
from django_jobqueue.states import JobState
from tests.admin.test_workers import FAILURES, WORKERS
from tests.factories import JobFactory
from tests.past import reread
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_a_queue_is_paused_stops_and_is_resumed(tab, run):
    services.create_queue("mails")
    done: list[int] = []
    run("mails", lambda n: done.append(n))
    services.send("mails", {"n": 1})
    until(lambda: done == [1], "the first is done", 60)

    page = tab.open("/admin/jobqueue/queue/mails/change/")
    page.locator(".jq-acts [name=reason]").fill("the printer is empty")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("is paused")).to_be_visible()
    waiting = services.send("mails", {"n": 2})
    assert waiting is not None
    tab.open("/admin/jobqueue/queue/")
    expect(page.get_by_text("paused", exact=True)).to_be_visible()
    tab.open(f"/admin/jobqueue/job/{waiting.pk}/change/")
    expect(page.get_by_text("has been paused since")).to_be_visible()
    assert done == [1]
    tab.open("/admin/jobqueue/queue/mails/change/")
    page.get_by_role("button", name="Resume").click()

    until(lambda: done == [1, 2], "it goes on", 60)
    assert not Queue.objects.get(pk="mails").is_paused


def test_a_new_failure_appears_on_the_overview_without_a_reload(tab, fifo_queue):
    page = tab.open("/admin/jobqueue/")
    expect(page.get_by_text("ShopError: no stock")).to_have_count(0)
    page.evaluate("window.stillHere = true")

    JobFactory(queue=fifo_queue, singleton_key="ada", state=JobState.FAILED, error="ShopError: no stock")

    expect(page.get_by_text("ShopError: no stock")).to_be_visible(timeout=60_000)
    assert page.evaluate("window.stillHere") is True
    tab.picture("overview with a new failure")


def test_one_group_of_failures_of_two_is_retried(tab, queue):
    meant = [JobFactory(queue=queue, state=JobState.FAILED, fingerprint="a", error="ValueError: a") for _ in range(3)]
    spared = JobFactory(queue=queue, state=JobState.FAILED, fingerprint="b", error="KeyError: b")

    page = tab.open(FAILURES)
    page.get_by_role("row", name="ValueError: a").get_by_role("button", name="Retry these").click()
    expect(page.get_by_text("All 3 jobs")).to_be_visible()
    page.get_by_role("button", name="Retry").click()

    expect(page.locator("[data-jq=state]")).to_have_text("done", timeout=60_000)
    assert {reread(job).state for job in meant} == {"retry"}
    assert reread(spared).state == "failed"


def test_a_worker_is_asked_to_stop_and_leaves(tab, start):
    worker = start("--name", "web-1")

    page = tab.open(WORKERS)
    expect(page.get_by_text("alive", exact=True)).to_be_visible()
    page.get_by_label("Reason").fill("it leaks")
    page.get_by_role("button", name="Ask to stop").click()
    expect(page.get_by_text("to stop: it finishes its running jobs first")).to_be_visible()

    assert worker.ended(60) == 0
    assert not Worker.objects.filter(stopped_at=None).exists()
    tab.open(WORKERS)
    expect(page.get_by_text("stopped", exact=True)).to_be_visible()
    tab.picture("worker stopped")


def test_a_schedule_is_edited_and_run_now(tab, queue):
    services.create_schedule("nightly", queue.name, "30 2 * * *", timezone="Europe/Berlin")

    page = tab.open("/admin/jobqueue/schedule/nightly/change/")
    page.get_by_label("Cron").fill("15 4 * * *")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("At 04:15 every day")).to_be_visible()
    page.get_by_role("link", name="nightly").first.click()
    page.get_by_role("button", name="Run now").click()

    expect(page.get_by_text("Sent job")).to_be_visible()
    expect(page.get_by_text("by hand")).to_be_visible()
    assert Schedule.objects.get().cron == "15 4 * * *"
    assert Job.objects.count() == 1
