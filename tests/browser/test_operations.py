"""What operators did: kept with a reason, shown with its jobs, finished without a browser, and Back works."""

from __future__ import annotations

import signal

import pytest
from django.db import connection
from playwright.sync_api import expect

from django_jobqueue.models import Job, Operation, Queue
from tests.admin.pages import BLOCKED, JOBS
from tests.factories import JobFactory, QueueFactory
from tests.faults.runner import Runner
from tests.past import left_alone, reread
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MANY = 4_000


@pytest.fixture
def worker(tmp_path):
    """``runjobs`` in processes of its own, for another queue: its housekeeping process continues operations."""
    QueueFactory(name="faults")
    runner = Runner(tmp_path, "--processes", "1", "--queue", "faults", settings={"MONITOR_SECONDS": 3_600})
    yield runner
    runner.kill_all(signal.SIGKILL)
    runner.process.wait(10)
    print(runner.log[-8_000:])


def failed(queue, number):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, policy, state, finalized_at, retry_limit) "
            "SELECT gen_random_uuid(), %s, 'standard', 'failed', now(), 0 FROM generate_series(1, %s)",
            [queue.name, number],
        )


def choose(page, action):
    page.select_option("select[name=action]", action)
    page.locator("button[name=index]").click()  # "Go", or "Run" from Django 6.1 on


def test_an_operation_on_all_jobs_goes_on_with_the_browser_closed_and_shows_its_jobs(open_tab, queue, worker):
    failed(queue, MANY)
    spared = JobFactory(queue=QueueFactory(name="other"), state="failed")
    tab = open_tab()

    page = tab.open(f"{JOBS}?state=dead&queue={queue.name}")
    page.locator("#action-toggle").check()
    page.get_by_role("button", name="Select all 4,000 jobs").click()
    choose(page, "retry_jobs")
    expect(page.get_by_text(f"All jobs (queue: {queue.name}; state: expired, failed), failed until")).to_be_visible()
    JobFactory(queue=queue, state="failed")  # after the page was shown
    page.get_by_label("Reason").fill("the bank is back")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("progress")).to_be_visible()
    page.close()  # the browser is closed, and nothing asks for the rest

    operation = left_alone(Operation.objects.get())
    assert (operation.state, operation.moved < MANY) == ("running", True)
    until(lambda: Operation.objects.get().state == "done", "a worker has finished it", 60)
    page = open_tab().open(f"/admin/jobqueue/operation/{operation.pk}/change/")
    expect(page.get_by_text(f"All jobs (queue: {queue.name}; state: expired, failed), failed until")).to_be_visible()
    expect(page.locator("[data-jq=moved]")).to_have_text("4,000")
    expect(page.get_by_text("the bank is back")).to_be_visible()
    expect(page.get_by_text("after the confirmation was shown: 1. They were not changed.")).to_be_visible()
    page.get_by_role("link", name="Show these jobs").click()
    expect(page.get_by_text("4,000 jobs", exact=True)).to_be_visible()
    assert Job.objects.filter(state="retry").count() == MANY
    assert reread(spared).state == "failed"


def test_back_leads_from_each_page_to_the_one_before(tab, fifo_queue):
    job = JobFactory(queue=fifo_queue, singleton_key="ada", state="failed")

    page = tab.open(BLOCKED)
    page.get_by_label("Select this object for an action").check()
    choose(page, "skip_keys")
    page.get_by_label("Reason").fill("refunded")
    page.get_by_role("button", name="Skip").click()
    expect(page.get_by_text("refunded")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("This was confirmed by olga")).to_be_visible()
    expect(page.get_by_role("button", name="Skip")).to_be_disabled()
    page.reload()
    expect(page.get_by_text("This was confirmed by olga")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("No key is blocked")).to_be_visible()
    page.go_forward()
    page.go_forward()
    expect(page.get_by_text("refunded")).to_be_visible()

    assert (reread(job).state, Operation.objects.count()) == ("stopped", 1)


def test_a_pause_asks_for_a_reason_and_is_in_the_history_of_the_queue(tab, queue):
    page = tab.open(f"/admin/jobqueue/queue/{queue.name}/change/")
    page.get_by_role("button", name="Pause").click()
    assert page.evaluate("document.querySelector('.jq-acts input:invalid') !== null")
    assert not Queue.objects.paused().exists()
    page.locator(".jq-acts [name=reason]").fill("the bank is down")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("is paused")).to_be_visible()
    tab.picture("queue paused with a reason")

    page.get_by_role("link", name="What operators did").click()
    expect(page.get_by_role("row", name="pause").get_by_text("the bank is down")).to_be_visible()
    tab.picture("history of a queue")
    assert Operation.objects.get().operator == "olga"
