"""An operator unblocks a key: finds it, skips or retries it, and sees the next job run."""

from __future__ import annotations

import threading

import pytest
from django.db import connection
from django.urls import reverse
from playwright.sync_api import expect

from django_jobqueue import services
from django_jobqueue.models import Job, Operation
from django_jobqueue.services import create_fifo_queue
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, JOBS, edit_url, job_url
from tests.factories import JobFactory
from tests.past import reread
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def shop(run):
    """A worker whose handler refuses expired cards; returns what it has shipped."""
    create_fifo_queue("orders", on_exhausted="block")
    shipped: list[int] = []
    lock = threading.Lock()

    def ship(order, card):
        if card == "expired":
            raise ValueError("the card has expired")
        with lock:
            shipped.append(order)

    run("orders", ship)
    return shipped


def order(number, card="good"):
    job = services.send("orders", {"order": number, "card": card}, singleton_key="ada", retry_limit=0)
    assert job is not None
    return job


def failed(job):
    return until(lambda: reread(job).state == JobState.FAILED, "it has failed", 60)


def test_a_blocked_key_is_found_skipped_with_a_reason_and_goes_on(tab, shop):
    bad, good = order(1, card="expired"), order(2)
    failed(bad)

    page = tab.open(BLOCKED)
    expect(page.get_by_text("the card has expired")).to_be_visible()
    tab.picture("blocked key found")
    page.get_by_label("Select this object for an action").check()
    page.select_option("select[name=action]", "skip_keys")
    page.locator("button[name=index]").click()  # "Go", or "Run" from Django 6.1 on
    expect(page.get_by_text(f"then #{good.seq} runs; 1 waiting")).to_be_visible()
    tab.picture("blocked key preview")
    page.get_by_label("Reason").fill("refunded by phone")
    page.get_by_role("button", name="Skip").click()

    expect(page.get_by_text("refunded by phone")).to_be_visible()
    tab.picture("blocked key result")
    until(lambda: shop == [2], "the next order of that key is shipped", 60)
    assert reread(bad).note == "olga: refunded by phone"
    tab.open(BLOCKED)
    expect(page.get_by_text("No key is blocked")).to_be_visible()


def test_a_job_is_retried_with_edited_data(tab, shop):
    bad, good = order(1, card="expired"), order(2)
    failed(bad)

    page = tab.open(job_url(bad))
    expect(page.get_by_text("It blocks the key 'ada'")).to_be_visible()
    page.get_by_role("link", name="Retry with other data").click()
    page.get_by_label("Data").fill('{"order": 1, "card": "new"')
    page.get_by_role("button", name="Retry with this data").click()
    expect(page.get_by_text("This is not valid JSON")).to_be_visible()
    page.get_by_label("Data").fill('{"order": 1, "card": "new"}')
    page.get_by_label("Reason").fill("another card")
    page.get_by_role("button", name="Retry with this data").click()

    expect(page.get_by_text("Retried with the new data.")).to_be_visible()
    until(lambda: shop == [1, 2], "both orders are shipped, in order", 60)
    assert reread(good).state == JobState.COMPLETED
    operation = Operation.objects.get()
    tab.open(reverse("admin:jobqueue_operation_change", args=[operation.pk]))
    expect(page.get_by_role("heading", name="Changed data")).to_be_visible()
    tab.picture("changed data")


def test_jobs_are_filtered_by_a_range(tab, queue):
    few = JobFactory(queue=queue, state=JobState.FAILED, attempt=1)
    many = JobFactory(queue=queue, state=JobState.FAILED, attempt=5)

    page = tab.open(f"{JOBS}?state=failed")
    page.get_by_text("Filter", exact=True).click()
    page.get_by_text("By attempt").click()
    page.locator("[name=attempt__range__gte]").fill("3")
    page.locator("[name=attempt__range__gte]").press("Enter")

    expect(page.get_by_role("link", name=f"#{many.seq}", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name=f"#{few.seq}", exact=True)).to_have_count(0)
    assert "state=failed" in page.url
    page.get_by_text("By created at").click()
    page.locator("[name=created_at__range__gte]").fill("2099-01-01T00:00")
    page.locator("details.jq-filter:has([name=created_at__range__gte]) button").click()
    expect(page.get_by_text("No job matches the filters.")).to_be_visible()
    tab.picture("range filter")
    page.get_by_role("link", name="Clear all filters").click()
    expect(page.get_by_role("link", name=f"#{few.seq}", exact=True)).to_be_visible()


@pytest.mark.slow
def test_all_of_many_thousand_jobs_are_selected_with_progress(tab, queue):  # F66
    number = 30_000
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, policy, state, finalized_at) "
            "SELECT gen_random_uuid(), %s, 'standard', 'completed', now() FROM generate_series(1, %s)",
            [queue.name, number],
        )
    kept = JobFactory(queue=queue)

    page = tab.open(f"{JOBS}?state=finished")
    expect(page.get_by_text("10,000+ jobs", exact=True)).to_be_visible()
    page.locator("#action-toggle").check()
    page.get_by_role("button", name="Select all 10,000+ jobs").click()
    page.select_option("select[name=action]", "delete_jobs")
    page.locator("button[name=index]").click()  # "Go", or "Run" from Django 6.1 on
    expect(page.get_by_text("that match the filters")).to_be_visible()
    tab.picture("select all preview")
    page.get_by_label("Reason").fill("archived elsewhere")
    page.get_by_role("button", name="Delete").click()

    bar = page.locator("progress")
    expect(bar).to_be_visible()
    until(lambda: 0 < page.evaluate("document.querySelector('progress')?.value ?? 0") < 100, "it is under way", 60)
    tab.picture("select all progress")
    expect(page.locator("[data-jq=state]")).to_have_text("done", timeout=180_000)
    expect(bar).to_have_count(0)
    tab.picture("select all done")
    assert list(Job.objects.all()) == [kept]
    operation = Operation.objects.get()
    assert (operation.moved, operation.refused, operation.operator) == (number, 0, "olga")


def test_the_keyboard_is_enough(tab, fifo_queue):
    job = JobFactory(queue=fifo_queue, singleton_key="ada", state=JobState.FAILED)

    page = tab.open(job_url(job))
    page.get_by_role("link", name="Retry", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_label("Reason").focus()
    page.keyboard.type("tried again")
    page.keyboard.press("Enter")

    expect(page.get_by_text("Done: Retry.")).to_be_visible()
    assert reread(job).state == JobState.RETRY
    assert edit_url(job) not in page.content()
