"""An operator sees dead letters on the first page, looks at them, and redrives them; a worker then runs each once."""

from __future__ import annotations

import threading

import pytest
from playwright.sync_api import expect

from django_jobqueue import services
from django_jobqueue.models import Job, Operation
from django_jobqueue.states import JobState
from tests.past import reread
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_dead_letters_are_found_on_the_first_page_and_redriven_from_there(tab, run):
    services.create_queue("orders-dead")
    services.create_fifo_queue("orders", dead_letter="orders-dead")
    shipped: list[int] = []
    lock, renewed = threading.Lock(), threading.Event()

    def ship(order: int) -> None:
        if not renewed.is_set() and order == 1:
            raise ValueError("the card has expired")
        with lock:
            shipped.append(order)

    run("orders", ship)
    bad, good = (services.send("orders", {"order": n}, singleton_key="ada", retry_limit=0) for n in (1, 2))
    assert bad is not None
    assert good is not None
    until(lambda: reread(bad).state == JobState.FAILED, "it has failed", 60)
    renewed.set()

    page = tab.open("/admin/jobqueue/")
    expect(page.get_by_text("runjobs --queue orders-dead")).to_have_count(0)
    page.get_by_role("link", name="1 dead letter in 'orders-dead'").click()
    expect(page.get_by_role("cell", name="the card has expired")).to_be_visible()
    tab.picture("dead letters")
    page.get_by_label("Reason").fill("the card was renewed")
    page.get_by_role("button", name="Redrive").click()

    expect(page.get_by_text("originals retried: 1; jobs sent again: 0")).to_be_visible()
    tab.picture("dead letters redriven")
    until(lambda: shipped == [1, 2], "both orders are shipped, in order", 60)
    assert not Job.objects.in_queue("orders-dead").exists()
    assert Operation.objects.get().reason == "the card was renewed"
