"""Chromium against a live server with a strict CSP; a test fails if the browser logs an error or a warning."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from tests.faults.conftest import queues, start  # noqa: F401  # fixtures
from tests.worker.conftest import registry, run  # noqa: F401  # fixtures

ROOT = Path(__file__).parent.parent.parent
PICTURES = Path(os.environ.get("JOBQUEUE_PICTURES", ROOT / "build" / "pictures"))
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 30_000


def chromium() -> str | None:
    """The browser of the system; nothing is downloaded."""
    return os.environ.get("JOBQUEUE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for one module at a time, because its event loop disturbs other tests.

    Meanwhile Django is told that using the database in a thread with an event loop is intended.
    """
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one in JOBQUEUE_CHROMIUM")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)

    with pytest.MonkeyPatch.context() as patched, sync_playwright() as playwright:
        patched.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


class Tab:
    """A page of a user who is logged in."""

    def __init__(self, page: Any, base: str, name: str) -> None:
        self.page, self.base, self.name = page, base, name
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, path: str) -> Any:
        self.page.goto(self.base + path)
        return self.page

    def picture(self, what: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{re.sub(r'[^a-z0-9]+', '-', what.lower())}.png", full_page=True)

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.fixture
def operator(transactional_db: None) -> User:
    return User.objects.create_superuser("olga", password="olga")


@pytest.fixture
def open_tab(browser: Any, live_server: Any, operator: User, request: pytest.FixtureRequest) -> Iterator[Any]:
    """``open_tab(width=390, dark=True)``: each is its own browser session, logged in as the operator."""
    tabs: list[Tab] = []

    def opened(*, width: int = 1280, height: int = 900, dark: bool = False) -> Tab:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        context.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        client = Client()
        client.force_login(operator)
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": live_server.url}])
        tabs.append(Tab(context.new_page(), live_server.url, request.node.name))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.page.context.close()
    assert [complaint for tab in tabs for complaint in tab.complaints] == []


@pytest.fixture
def tab(open_tab: Any) -> Any:
    return open_tab()
