"""An operator at a narrow screen, at the keyboard, and in front of a job that runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone
from playwright.sync_api import expect

from django_jobqueue import services
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, JOBS, job_url
from tests.admin.test_workers import FAILURES
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ERROR = """Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 27, in ship_order
    charge(order.card)
ShopError: the card of this customer has expired, and there is no other
"""


@pytest.fixture
def blocked(fifo_queue):
    jobs = [
        JobFactory(
            queue=fifo_queue,
            singleton_key=f"customer-{number}",
            name="ship_order",
            state=JobState.FAILED,
            error=ERROR,
            fingerprint="card",
            finalized_at=ago(hours=9 - number),
        )
        for number in range(3)
    ]
    JobFactory(queue=fifo_queue, singleton_key="customer-0", hold="lane")
    return jobs


class Keyboard:
    """Counts the keys that are pressed since a page was loaded."""

    def __init__(self, page):
        self.page, self.pressed = page, 0

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
            self.pressed += 1

    def tab_to(self, name):
        """Press Tab until the element with this name has the focus."""
        while self.pressed < 10:
            self.press("Tab")
            if self.page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.innerText") == name:
                return
        raise AssertionError(f"{name} is not within 10 keys")


@pytest.mark.parametrize(("verb", "state"), (("Retry", JobState.RETRY), ("Skip", JobState.STOPPED)))
def test_the_first_blocked_key_is_retried_or_skipped_with_few_keys(tab, blocked, verb, state):
    job = blocked[0]
    keyboard = Keyboard(tab.open(BLOCKED))

    keyboard.press("Tab", "Enter")  # skips to the main content
    keyboard.tab_to("To the first action")
    keyboard.press("Enter")
    if verb == "Skip":
        keyboard.tab_to(f"Skip #{job.seq}")
    keyboard.press("Enter")
    expect(keyboard.page.get_by_label("Reason")).to_be_focused()
    keyboard.press("x", "Enter")

    expect(keyboard.page.get_by_text(f"Done: {verb}.")).to_be_visible()
    assert keyboard.pressed <= 10
    assert reread(job).state == state


def test_a_queue_is_paused_and_failures_are_opened_with_few_keys(tab, blocked, fifo_queue):
    keyboard = Keyboard(tab.open(f"/admin/jobqueue/queue/{fifo_queue.name}/change/"))
    keyboard.press("Tab", "Enter")
    keyboard.tab_to("To the first action")
    keyboard.press("Enter", "x", "Enter")
    expect(keyboard.page.get_by_text("is paused")).to_be_visible()
    assert Queue.objects.get(pk=fifo_queue.name).is_paused
    assert keyboard.pressed <= 10

    for address in (BLOCKED, JOBS, job_url(blocked[0])):
        keyboard = Keyboard(tab.open(address))
        keyboard.press("Tab", "Enter")
        keyboard.tab_to("Failures")
        keyboard.press("Enter")
        expect(keyboard.page.get_by_role("heading", name="Failures")).to_be_visible()
        assert keyboard.pressed <= 10


def in_sight(page, locator):
    """Whether the element is within the width of the window."""
    box = locator.bounding_box()
    return box is not None and box["x"] >= 0 and box["x"] + box["width"] <= page.viewport_size["width"]


def test_each_row_on_a_narrow_screen_shows_what_matters_and_its_button(open_tab, blocked):
    tab = open_tab(width=390, height=844)
    job = blocked[0]

    page = tab.open(BLOCKED)
    tab.picture("blocked keys as cards")
    row = page.locator("#result_list tbody tr").first
    for text in ("customer-0", "9 h ago", "the card of this customer has expired", "oldest", "Retry", "Skip"):
        assert in_sight(page, row.get_by_text(text).first), text
    page = tab.open(f"{BLOCKED}?by=error")
    for text in ("the card of this customer has expired", "9 h ago", "Retry all", "Skip all"):
        assert in_sight(page, page.locator(".jq-cards tbody tr").first.get_by_text(text).first), text
    page = tab.open(FAILURES)
    for text in ("the card of this customer has expired", "Retry these", "Skip these"):
        assert in_sight(page, page.locator(".jq-cards tbody tr").first.get_by_text(text).first), text
    page = tab.open(f"{JOBS}?state=dead")
    row = page.locator("#result_list tbody tr").filter(has_text=f"#{job.seq}")
    for text in ("customer-0", "failed", "Retry"):
        assert in_sight(page, row.get_by_text(text, exact=True).first), text
    assert tab.overflow() <= 0


def test_a_group_is_skipped_from_its_row(tab, blocked, fifo_queue):
    spared = JobFactory(queue=fifo_queue, singleton_key="other", state=JobState.FAILED, error="KeyError: x")

    page = tab.open(BLOCKED)
    page.get_by_role("link", name="Grouped by error").click()
    tab.picture("blocked keys grouped")
    page.get_by_role("row", name="ShopError").get_by_role("button", name="Skip all").click()
    expect(page.get_by_text("All 3 jobs")).to_be_visible()
    page.get_by_label("Reason").fill("refunded")
    page.get_by_role("button", name="Skip").click()

    expect(page.locator("[data-jq=state]")).to_have_text("done", timeout=60_000)
    assert {reread(job).state for job in blocked} == {"stopped"}
    assert reread(spared).state == "failed"


def test_a_filter_is_removed_by_its_chip(tab, blocked):
    page = tab.open(f"{BLOCKED}?q=customer-1&fingerprint=card")
    expect(page.locator("#result_list tbody tr")).to_have_count(1)

    page.get_by_role("link", name="Remove the filter search: customer-1").click()

    expect(page.locator("#result_list tbody tr")).to_have_count(3)
    assert "fingerprint=card" in page.url


def test_one_of_200_queues_is_found_and_leads_to_its_jobs_and_keys(tab, blocked, fifo_queue):
    QueueFactory.create_batch(200)

    page = tab.open("/admin/jobqueue/queue/")
    page.get_by_label("Search").fill(fifo_queue.name)
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.get_by_role("row", name=fifo_queue.name).get_by_role("link", name="3", exact=True).click()
    expect(page).to_have_url(tab.base + f"{BLOCKED}?queue={fifo_queue.name}")
    page.get_by_role("link", name=fifo_queue.name, exact=True).first.click()
    expect(page.get_by_role("link", name="all jobs")).to_be_visible()


def test_the_page_of_a_running_job_follows_it_to_its_end(tab, queue):
    sent = services.send(queue.name)
    (job,) = services.fetch(queue.name)
    assert sent is not None
    Job.objects.filter(pk=job.pk).update(progress=0.1, progress_text="1 of 10")

    page = tab.open(job_url(job))
    expect(page.get_by_text("Live, ")).to_be_visible()
    expect(page.get_by_text("1 of 10")).to_be_visible()
    page.evaluate("window.stillHere = true")
    Job.objects.filter(pk=job.pk).update(progress=0.7, progress_text="7 of 10")
    expect(page.get_by_text("7 of 10")).to_be_visible()
    assert page.evaluate("document.querySelector('progress').value") == 0.7
    services.complete(job)

    expect(page.get_by_role("heading", name="completed")).to_be_visible()
    expect(page.get_by_text("Live, ")).to_have_count(0)
    assert page.evaluate("window.stillHere") is True


def test_a_job_page_says_that_the_server_is_gone_or_the_session_has_ended(tab, queue):
    job = JobFactory(queue=queue)
    page = tab.open(job_url(job))

    page.route("**/pulse/", lambda route: route.abort())
    expect(page.get_by_text("Not reachable since")).to_be_visible()
    expect(page.get_by_text("Live, ")).to_be_hidden()
    page.unroute("**/pulse/")
    expect(page.get_by_text("Live, ")).to_be_visible()
    Session.objects.all().delete()
    expect(page.get_by_text("Your session has ended.")).to_be_visible()
    expect(page.get_by_role("link", name="Log in again")).to_be_visible()
    tab.complaints.clear()  # the browser logs each request that fails


def test_a_job_page_does_not_change_under_the_fingers(tab, queue):
    job = JobFactory(queue=queue)
    page = tab.open(job_url(job))
    page.get_by_role("link", name="Cancel", exact=True).focus()

    services.cancel(job.pk)

    expect(page.get_by_text("This job has changed.")).to_be_visible()
    page.get_by_role("link", name="Show it").click()
    expect(page.get_by_role("heading", name="cancelled")).to_be_visible()


def test_attempts_are_a_table(tab, queue):
    began = timezone.now() - timedelta(minutes=5)
    attempt = {
        "attempt": 1,
        "worker": "web-1",
        "started": began.isoformat(),
        "ended": (began + timedelta(seconds=90)).isoformat(),
        "outcome": "error",
        "error": ERROR,
    }
    job = JobFactory(queue=queue, state=JobState.RETRY, attempts=[attempt], attempt=1)

    page = tab.open(job_url(job))

    row = page.get_by_role("row", name="web-1")
    for text in ("error", "1 min 30 s", "ShopError"):
        expect(row.get_by_text(text).first).to_be_visible()
    until(lambda: row.locator("details").count() == 1, "the traceback can be opened", 10)
