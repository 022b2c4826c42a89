"""From the first line that ``make demo`` prints to the admin, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.demo_process import demo, empty_folder

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def folder() -> Iterator[Path]:
    with empty_folder() as path:
        yield path


def log_in(browser: Any, said: dict[str, str]) -> Any:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(said["shop"] + "admin/")
    page.fill("[name=username]", said["user"])
    page.fill("[name=password]", said["password"])
    page.click("[type=submit]")
    page.wait_for_selector("#user-tools, .logout, #logout-form")
    return page


def test_the_shop_and_its_admin_work_and_keep_their_data(browser, folder):
    with demo(folder) as first:
        said = first.introduction()
        page = log_in(browser, said)
        page.goto(said["shop"])
        page.select_option("[name=item]", "honey")
        page.click("button:text-is('Order')")
        page.wait_for_selector("td:has-text('honey')")
        with page.expect_response("**/export/") as answer:
            page.click("#export")
        exported = answer.value.json()["id"]
        page.wait_for_function("document.getElementById('says').textContent.startsWith('completed')")
        page.reload()
        page.wait_for_selector("td:has-text('customer-ben')")  # the sample data has a blocked key
        page.goto(f"{said['shop']}admin/jobqueue/job/{exported}/change/")
        assert "export_orders" in page.content()
        page.close()

        assert first.interrupt() == 0
        assert "Your data is kept for the next time." in first.said
        assert "Traceback" not in first.said
        assert first.left() == []

    with demo(folder) as second:
        said = second.introduction()
        page = log_in(browser, said)
        page.goto(f"{said['shop']}jobs/{exported}/")
        assert '"state": "completed"' in page.content()
        page.close()
        assert second.interrupt() == 0
        assert second.left() == []
