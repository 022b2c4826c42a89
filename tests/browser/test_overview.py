"""The first page in a browser: what it says, where its figures lead, its charts, and whether it is live."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.cache import cache
from django.core.servers.basehttp import WSGIServer
from django.db import connection
from django.test import Client
from django.test.testcases import LiveServerThread, QuietWSGIRequestHandler
from django.utils import timezone
from playwright.sync_api import expect

from django_jobqueue.models import Job, QueueMinute
from django_jobqueue.states import JobState
from tests.factories import JobFactory
from tests.past import ago

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

OVERVIEW = "/admin/jobqueue/"


@pytest.fixture(autouse=True)
def nothing_cached():
    cache.clear()


def failed(queue, key, error="ShopError: broken", fingerprint="abc", minutes_ago=33):
    ended = ago(minutes=minutes_ago)
    return JobFactory(
        queue=queue, singleton_key=key, state=JobState.FAILED, error=error, fingerprint=fingerprint, finalized_at=ended
    )


def test_what_is_blocked_is_seen_and_skipped_from_the_first_page(open_tab, fifo_queue):
    for key in "ab":
        failed(fifo_queue, key)
        JobFactory(queue=fifo_queue, singleton_key=key, hold="lane")
    failed(fifo_queue, "c", "TypeError: no", "other")
    tab = open_tab(width=390, height=844)

    page = tab.open(OVERVIEW)

    expect(page.get_by_text("3 keys blocked in 1 queue · 2 jobs wait behind them · longest 33 min")).to_be_visible()
    tab.picture("overview with blocked keys narrow")
    row = page.get_by_role("row").filter(has_text="ShopError: broken")
    box = row.get_by_role("button", name="Skip").bounding_box()
    assert box["x"] + box["width"] <= 390
    row.get_by_role("button", name="Skip").click()
    expect(page.get_by_text("All 2 jobs that match the filters")).to_be_visible()
    page.get_by_role("button", name="Skip").click()
    expect(page.locator("input[name=reason]:invalid, .errorlist")).to_have_count(1)  # a reason is needed


def test_each_tile_opens_exactly_what_it_counts(tab, queue, fifo_queue):
    failed(fifo_queue, "old", minutes_ago=90)
    new = failed(fifo_queue, "new", minutes_ago=5)
    JobFactory(queue=queue, state=JobState.ACTIVE)

    page = tab.open(OVERVIEW)
    page.locator("[data-jq-row=failed] a").click()

    expect(page.get_by_role("link", name=f"#{new.seq}", exact=True)).to_be_visible()
    assert page.locator("#result_list tbody tr").count() == 1
    tab.open(OVERVIEW)
    page.get_by_label("Queue", exact=True).fill(queue.name)
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("All clear")).to_be_visible()
    expect(page.locator("[data-jq-row=running] a")).to_have_text("1")


def test_a_chart_shows_values_under_the_pointer_and_a_click_on_a_peak_opens_its_jobs(tab, fifo_queue):
    peak = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=30)
    for number in range(60):
        at = peak + timedelta(minutes=number - 30)
        counts = {"sent": 60 if number == 5 else 20, "completed": 1, "failed": 7 if at == peak else 0}
        QueueMinute.objects.create(queue=fifo_queue, minute=at, **counts)
    jobs = [failed(fifo_queue, str(number)) for number in range(3)]
    Job.objects.filter(pk__in=[job.pk for job in jobs[:2]]).update(finalized_at=peak + timedelta(seconds=20))

    page = tab.open(OVERVIEW)
    figure = page.locator("[data-jq-row=throughput]")
    over = figure.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    shown = figure.locator("[data-jq-value]")
    place = next(
        x for x in range(int(box["width"] * 0.4), int(box["width"] * 0.6))
        if (page.mouse.move(box["x"] + x, box["y"] + 9), shown.nth(2).inner_text())[1] == "7/min"
    )  # fmt: skip

    assert shown.all_inner_texts() == ["20/min", "1/min", "7/min"]
    assert re.fullmatch(r"\d\d:\d\d", figure.locator("[data-jq-time]").inner_text())
    tab.picture("overview with values under the pointer")
    page.mouse.click(box["x"] + place, box["y"] + 9)  # near the top, where only the failures are
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    assert "state=dead" in page.url


def test_focus_and_position_stay_while_the_page_is_drawn_again(tab, fifo_queue):
    failed(fifo_queue, "a", "TypeError: first", "first")
    page = tab.open(OVERVIEW)
    button = page.get_by_role("row").filter(has_text="TypeError: first").get_by_role("button", name="Retry")
    button.focus()

    failed(fifo_queue, "b", "ShopError: newer", "newer")
    JobFactory(queue=fifo_queue, singleton_key="b", hold="lane")  # so that its row comes first

    expect(page.get_by_text("ShopError: newer", exact=True)).to_be_visible()
    expect(page.locator("tr[data-jq-row]").first).to_contain_text("ShopError: newer")
    expect(button).to_be_focused()


class Server(LiveServerThread):
    """A server that can be started again at the same port. Its one thread keeps no connection alive when it ends."""

    def __init__(self, port=0):
        super().__init__("localhost", static_handler=StaticFilesHandler, port=port)
        self.daemon = True
        self.start()
        self.is_ready.wait()
        if self.error:
            raise self.error

    def _create_server(self, connections_override=None):
        return WSGIServer((self.host, self.port), QuietWSGIRequestHandler, allow_reuse_address=True)


def renamed(table, name):
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER TABLE "{table}" RENAME TO "{name}"')


def test_old_figures_are_never_shown_as_live(open_tab, operator, fifo_queue):
    """The server goes, the session ends, the database fails: each is said, and old figures look old."""
    server = Server()
    tab = open_tab()
    tab.base = f"http://localhost:{server.port}"

    def log_in():
        client = Client()
        client.force_login(operator)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        tab.page.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": tab.base}])

    log_in()
    page = tab.open(OVERVIEW)
    live, note, again = (page.locator(f"[data-jq-{name}]") for name in ("live", "stale", "try"))

    def is_stale(text):
        expect(note).to_contain_text(text)
        expect(live).not_to_contain_text("live")
        expect(page.get_by_text("All clear")).to_be_visible()  # the old figures stay, but say that they are old
        expect(page.locator("[data-jq-overview]")).to_have_class(re.compile("jq-is-stale"))

    def is_live():
        again.click()
        expect(live).to_contain_text(re.compile(r"live, \d\d:\d\d:\d\d"))
        expect(note).to_be_hidden()

    expect(live).to_contain_text("live, ")
    server.terminate()
    is_stale("Not reachable since")
    tab.picture("overview not reachable")
    server = Server(server.port)
    is_live()

    Session.objects.all().delete()
    is_stale("You are logged out")
    expect(page.get_by_role("link", name="Log in again")).to_be_visible()
    log_in()
    is_live()

    renamed("jobqueue_worker", "jobqueue_gone")
    try:
        is_stale("Not reachable since")
        failed(fifo_queue, "a")
    finally:
        renamed("jobqueue_gone", "jobqueue_worker")
    again.click()
    expect(page.get_by_text("1 key blocked in 1 queue")).to_be_visible()
    expect(live).to_contain_text("live, ")
    server.terminate()
    assert {complaint.partition(":")[0] for complaint in tab.complaints} == {"error"}  # the browser names each failure
    tab.complaints.clear()
