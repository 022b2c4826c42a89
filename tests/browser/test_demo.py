"""From the first line that ``make demo`` prints to the shop and the admin, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from playwright.sync_api import expect

from tests.demo_process import Demo, demo, empty_folder
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.xdist_group("demo")]

FAST = {"SHOP_PACKING_SECONDS": "0.3"}
SHIPPED = """
SELECT o.number FROM shop_order o
JOIN shop_customer c ON c.id = o.customer_id JOIN jobqueue_job j ON j.id = o.job_id AND j.queue_id = 'orders'
WHERE c.name = %s AND o.number >= %s AND o.status = 'shipped' ORDER BY j.finalized_at
"""


class Shop:
    """The shop of a running demo, as pages of a browser and as rows."""

    def __init__(self, running: Demo, browser: Any) -> None:
        self.running = running
        self.said = running.introduction()
        self.address = self.said["shop"]
        self.browser = browser

    def page(self) -> Any:
        page = self.browser.new_context(reduced_motion="reduce").new_page()
        page.set_default_timeout(60_000)
        page.goto(self.address)
        expect(page.locator("#live")).to_contain_text("live")
        return page

    def last(self, customer: str) -> int:
        """The number of the customer's last order."""
        return self._read("SELECT placed FROM shop_customer WHERE name = %s", customer)[0]

    def attempts(self, handler: str) -> list[int]:
        """How many attempts each completed job of this handler took."""
        return self._read("SELECT attempt FROM jobqueue_job WHERE name = %s AND state = 'completed'", handler)

    def shipped(self, customer: str, since: int) -> list[int]:
        """The numbers of the customer's orders from this one on, in the order in which they were shipped."""
        return self._read(SHIPPED, customer, since)

    def _read(self, text: str, *params: object) -> list[int]:
        said = self.said
        dsn = f"host={said['host']} port={said['port']} user={said['role']} dbname={said['database']}"
        with psycopg.connect(dsn) as connection:
            return [value for (value,) in connection.execute(text, params)]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with empty_folder() as path:
        yield path


@pytest.fixture(scope="module")
def shop(folder: Path, browser: Any) -> Iterator[Shop]:
    with demo(folder, variables=FAST) as running:
        yield Shop(running, browser)


def lane(page: Any, customer: str) -> Any:
    return page.locator(".lane", has=page.get_by_role("heading", name=customer, exact=True))


def blocking(page: Any, customer: str) -> int:
    """The number of the order that blocks the customer's lane, once it does."""
    failed = lane(page, customer).locator(".track .failed")
    expect(failed).to_be_visible()
    return int(failed.inner_text())


def test_the_shop_opens_with_a_blocked_lane_and_needs_nothing_from_other_hosts(shop):
    page = shop.browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark").new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).netloc))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))

    answer = page.goto(shop.address)

    assert answer.headers["content-security-policy"] == "default-src 'self'"
    expect(page.get_by_role("status").first).to_contain_text("Ben's lane is blocked: the card has expired.")
    expect(page.locator(".lane")).to_have_count(8)
    expect(page.locator(".lane.stopped")).to_have_count(1)
    assert set(asked) == {urlsplit(shop.address).netloc}
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.context.close()


def test_a_broken_card_blocks_one_lane_and_after_a_skip_the_orders_behind_it_ship_in_order(shop):
    page = shop.page()
    page.get_by_role("button", name="Break Ada's card").click()
    failed = blocking(page, "Ada")
    expect(lane(page, "Ada")).to_contain_text(f"Order {failed} failed for good: the card has expired.")
    expect(lane(page, "Ada")).to_contain_text("orders wait behind it.")
    before = shop.shipped("Ada", failed)
    others = len(shop.shipped("Cleo", 1))
    until(lambda: len(shop.shipped("Cleo", 1)) > others, "an order of another lane is shipped", 60)
    assert before == shop.shipped("Ada", failed) == []

    page.get_by_role("button", name=f"Skip order {failed} of Ada").click()

    expect(page.locator("#notice")).to_have_text(
        f"Order {failed} of Ada was skipped and refunded. The orders behind it ship, in order."
    )
    expect(lane(page, "Ada").locator(".track .failed")).to_have_count(0)
    until(lambda: len(shop.shipped("Ada", failed)) >= 4, "the orders behind it are shipped", 60)
    shipped = shop.shipped("Ada", failed)
    assert shipped == list(range(failed + 1, failed + 1 + len(shipped)))
    page.context.close()


def test_an_order_that_is_retried_with_another_card_ships_before_the_orders_behind_it(shop):
    page = shop.page()
    page.get_by_role("button", name="Break Dan's card").press("Enter")
    failed = blocking(page, "Dan")

    page.get_by_role("button", name=f"Fix the card and retry order {failed} of Dan").press("Enter")

    until(lambda: len(shop.shipped("Dan", failed)) >= 4, "the orders behind it are shipped", 60)
    shipped = shop.shipped("Dan", failed)
    assert shipped == list(range(failed, failed + len(shipped)))
    page.context.close()


def test_what_another_browser_has_decided_is_refused_with_a_sentence(shop):
    first, second = shop.page(), shop.page()
    failed = blocking(first, "Ben")
    assert blocking(second, "Ben") == failed
    second.route("**/state/", lambda route: route.abort())  # so its page still shows the order as blocking
    expect(second.locator("#status")).to_contain_text("The shop has not answered since")
    first.get_by_role("button", name=f"Skip order {failed} of Ben").click()
    expect(lane(first, "Ben").locator(".track .failed")).to_have_count(0)

    second.get_by_role("button", name=f"Skip order {failed} of Ben").click()

    expect(second.locator("#notice")).to_contain_text("The order was decided in the meantime.")
    second.unroute("**/state/")
    expect(second.locator("#live")).to_contain_text("live")
    expect(lane(second, "Ben").locator(".track .failed")).to_have_count(0)
    first.context.close()
    second.context.close()


def test_orders_of_one_customer_that_are_placed_at_once_are_shipped_in_the_order_of_their_numbers(shop):
    page = shop.page()
    since = shop.last("Finn")
    press = """() => {
        const button = [...document.querySelectorAll("button")].find(each => each.ariaLabel === "Order for Finn");
        for (let times = 0; times < 8; times += 1) button.click();
    }"""

    page.evaluate(press)

    until(lambda: len(shop.shipped("Finn", since)) >= 9, "the orders are shipped", 60)
    shipped = shop.shipped("Finn", since)
    assert shipped == list(range(since, since + len(shipped)))
    page.context.close()


def test_a_button_needs_the_token_of_the_page(shop):
    context = shop.browser.new_context()

    statuses = [
        context.request.post(f"{shop.address}{path}/", form={"customer": "1"}).status
        for path in ("buy", "break", "skip", "retry", "kill", "export")
    ]

    assert statuses == [403] * 6
    context.close()


def test_the_orders_of_a_killed_worker_run_again_in_their_places(shop):
    page = shop.page()
    page.get_by_role("button", name="Kill a worker process").click()
    expect(page.locator("#notice")).to_contain_text("killed with SIGKILL")
    since = shop.last("Gita")

    until(lambda: 2 in shop.attempts("kill_worker"), "the job that killed its process runs again", 60)
    until(lambda: len(shop.shipped("Gita", since)) >= 4, "orders are shipped", 60)

    shipped = shop.shipped("Gita", since)
    assert shipped == list(range(since, since + len(shipped)))
    page.context.close()


def test_a_page_left_open_shows_that_the_shop_is_gone_and_then_continues_with_its_data(shop, folder):
    page = shop.page()
    with page.expect_response("**/export/") as answer:
        page.get_by_role("button", name="Export all orders").click()
    exported = answer.value.json()["id"]
    expect(page.locator("#export a")).to_contain_text("completed")
    shipped = int(page.inner_text("#shipped").replace(",", ""))

    assert shop.running.interrupt() == 0

    assert "Your data is kept for the next time." in shop.running.said
    assert "Traceback" not in shop.running.said
    assert shop.running.left() == []
    expect(page.locator("#status")).to_contain_text("The shop has not answered since")
    expect(page.locator("#live")).to_have_text("not reachable")
    with demo(folder, urlsplit(shop.address).port or 0, FAST) as second:
        said = second.introduction()
        expect(page.locator("#live")).to_contain_text("live")
        assert int(page.inner_text("#shipped").replace(",", "")) >= shipped
        expect(page.locator(".lane.stopped").first).to_be_visible()  # at each start one lane is blocked
        page.get_by_role("link", name="Job in the admin").first.click()
        page.fill("[name=username]", said["user"])
        page.fill("[name=password]", said["password"])
        page.click("[type=submit]")
        expect(page.locator("#content")).to_contain_text("the card has expired")
        page.goto(f"{said['shop']}jobs/{exported}/")
        assert '"state": "completed"' in page.content()
        assert second.interrupt() == 0
        assert second.left() == []
    page.context.close()
