"""The number of a job in a browser: searched for, opened, copied by keyboard; and the reason of its failure."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from django_jobqueue import services
from django_jobqueue.services import create_fifo_queue
from tests.admin.pages import BLOCKED, JOBS, job_url
from tests.past import reread

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


class PaymentError(Exception):
    pass


def failing():
    inner = ExceptionGroup("the bank", [PaymentError("no money\nDETAIL: card 4111"), KeyError("city")])
    raise ExceptionGroup("could not ship", [inner, *(PaymentError(f"x{n}") for n in range(3))])


@pytest.fixture
def job(db):
    create_fifo_queue("orders", on_exhausted="block")
    services.send("orders", {"order": 1}, singleton_key="ada", retry_limit=0)
    (job,) = services.fetch("orders")
    try:
        failing()
    except ExceptionGroup as error:
        services.fail(job, error)
    return reread(job)


def test_a_number_is_searched_for_and_leads_to_the_job(tab, job):
    for list_of in (JOBS, BLOCKED):
        page = tab.open(list_of)
        page.locator("#searchbar").fill(f"#{job.seq}")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{job_url(job)}")
    page = tab.open(f"/admin/jobqueue/job/{job.seq}/")
    page.wait_for_url(f"**{job_url(job)}")

    page = tab.open(BLOCKED)
    page.locator("#searchbar").fill(str(job.seq))
    page.keyboard.press("Enter")
    page.locator(".messagelist a").click()
    page.wait_for_url(f"**{job_url(job)}")


def test_the_reason_of_a_failure_is_on_every_page(tab, job):
    reason = "ExceptionGroup: could not ship [PaymentError: no money; KeyError: 'city'; PaymentError: x0; and 2 more]"

    for page in (JOBS, BLOCKED, "/admin/jobqueue/failuregroup/", "/admin/jobqueue/queue/overview/"):
        expect(tab.open(page).get_by_text(reason).first).to_be_visible()
    page = tab.open(job_url(job))
    expect(page.locator("p.jq-error")).to_have_text(reason)
    expect(page.locator(".jq-attempt summary")).to_contain_text(reason)
    tab.picture("reason of a failure")


@pytest.mark.parametrize("secure", (True, False), ids=("secure", "insecure"))
def test_the_id_of_a_job_is_copied_by_keyboard(tab, job, secure):
    if secure:
        tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        tab.page.add_init_script("Object.defineProperty(Navigator.prototype, 'clipboard', {get: () => undefined})")
    page = tab.open(job_url(job))
    button = page.get_by_role("button", name="Copy the id")

    button.focus()
    page.keyboard.press("Enter")

    expect(page.get_by_role("status").filter(has_text="copied")).to_have_text("copied")
    expect(button).to_be_focused()
    page.evaluate("document.body.append(document.createElement('input'))")
    page.locator("body > input").focus()
    page.keyboard.press("Control+V")
    expect(page.locator("body > input")).to_have_value(str(job.pk))


def test_a_page_without_script_has_no_button_that_does_nothing(browser, tab, job):
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies(tab.page.context.cookies())
    page = context.new_page()
    page.goto(tab.base + job_url(job))

    expect(page.get_by_text(str(job.pk))).to_be_visible()
    expect(page.locator(".jq-copy").first).to_be_hidden()
    context.close()
