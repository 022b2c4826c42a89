"""A project that uses the built wheel: its own tests pass, and a server and workers do what its users ask for."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest

from tests.demo_process import free_port
from tests.fresh_install import ROOT, Installation, build_wheel, empty_databases
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PROJECT = ROOT / "tests" / "sample_project"
DATABASE = f"bookshop{os.environ.get('PYTEST_XDIST_WORKER', '')}"  # the workers of a run share a server
REQUIREMENTS = ("psycopg[binary,pool]", "pytest-django", "django-unfold")
LINK = re.compile(r'href="(/admin/jobqueue/[^"?#]*)')
PATIENCE = 60.0


@pytest.fixture(scope="module")
def project(django_db_setup: None, django_db_blocker: Any, tmp_path_factory: Any) -> Iterator[Installation]:
    place: Path = tmp_path_factory.mktemp("sample")
    with django_db_blocker.unblock(), empty_databases(DATABASE, f"{DATABASE}_reports") as server:
        shutil.copytree(PROJECT, place / "project", ignore=shutil.ignore_patterns("__pycache__"))
        installation = Installation.create(place / "venv", place / "project", {**server, "BOOKSHOP_DATABASE": DATABASE})
        installation.install(str(build_wheel(place / "dist")), *REQUIREMENTS)
        yield installation


def test_its_tests_pass(project):
    assert "passed" in project.run("python", "-m", "pytest", "-q", "--create-db")


def test_its_tests_pass_without_migrations(project):
    assert "passed" in project.run("python", "-m", "pytest", "-q", "--create-db", "--nomigrations")


def test_its_tests_pass_with_django_s_runner_and_without_migrations(project):
    said = project.manage("test", "--noinput", "books.tests.BuyTests", "reports", BOOKSHOP_MIGRATE="0")

    assert "OK" in said


def test_it_is_migrated_served_and_worked(project, tmp_path):
    project.manage("makemigrations", "--check", "--dry-run", "books", "reports", "jobqueue")
    project.manage("migrate", "--database", "reports")
    project.manage("migrate")  # a data migration sends a job on the way
    project.manage("check", "--fail-level", "WARNING", "--database", "default", "--database", "reports")
    project.manage("createsuperuser", "--noinput", "--username", "op", "--email", "", DJANGO_SUPERUSER_PASSWORD="op")

    port = free_port()
    serve = ["runserver", "--noreload", f"127.0.0.1:{port}"]
    with project.running(serve, tmp_path / "server"), project.running(["runjobs"], tmp_path / "worker") as worker:
        site = Site(f"http://127.0.0.1:{port}")
        until(site.answers, "the server answers", PATIENCE)
        site.post("/buy/", customer="ada", title="Emma")
        site.post("/buy/", customer="ben", title="a book that is out of print")
        site.post("/buy/", customer="ben", title="Persuasion")
        assert site.status("/buy-and-fail/", customer="eve", title="Emma") == 500

        until(lambda: site.states() == ["shipped", "new", "new"], "ada's order is shipped, and ben's wait", PATIENCE)
        until(lambda: len(list((project.folder / "mails").glob("*"))) == 3, "each order is confirmed", PATIENCE)
        failed = ("jobs", "list", "--state", "failed", "--queue", "orders")
        until(lambda: "ben" in project.manage(*failed), "ben is blocked", PATIENCE)  # last: each look starts a process
        assert "completed" in project.manage("jobs", "list", "--queue", "default")  # the job of the data migration

        site.log_in("op", "op")
        overview = site.get("/admin/jobqueue/queue/overview/")
        assert "unfold" in site.get("/admin/jobqueue/job/")
        assert "ben" in overview
        assert "no handler named" not in overview
        links = {
            link for page in ("/admin/", "/admin/jobqueue/queue/overview/") for link in LINK.findall(site.get(page))
        }
        assert len(links) > 8
        assert {link: site.status(link) for link in links} == dict.fromkeys(links, 200)

        project.manage("jobs", "skip", "--queue", "orders", "--yes", "--reason", "out of print")
        until(lambda: site.states() == ["shipped", "new", "shipped"], "ben's next order is shipped", PATIENCE)
        assert worker.poll() is None

    project.manage(
        "shell", "-c", "from reports.jobs import *; write_report.using(using='reports').send('2026-01-31', 3)"
    )
    said = project.manage("runjobs", "--drain", "--database", "reports")
    assert "Traceback" not in said
    assert "completed" in project.manage("jobs", "list", "--database", "reports")


class Site:
    """The bookshop as a browser without scripts sees it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookies = CookieJar()
        self.opener: OpenerDirector = build_opener(HTTPCookieProcessor(self.cookies))

    def get(self, path: str) -> str:
        return str(self.opener.open(self.address + path, timeout=PATIENCE).read().decode())

    def post(self, path: str, **fields: str) -> str:
        data = urlencode(fields).encode()
        return str(self.opener.open(self.address + path, data, timeout=PATIENCE).read().decode())

    def status(self, path: str, **fields: str) -> int:
        try:
            self.post(path, **fields) if fields else self.get(path)
        except HTTPError as error:
            return error.code
        return 200

    def answers(self) -> bool:
        try:
            return self.status("/orders/") == 200
        except (URLError, ConnectionError):
            return False

    def states(self) -> list[str]:
        return [order["state"] for order in json.loads(self.get("/orders/"))["orders"]]

    def log_in(self, name: str, password: str) -> None:
        self.get("/admin/login/")
        [token] = [cookie.value for cookie in self.cookies if cookie.name == "csrftoken"]
        self.post("/admin/login/", username=name, password=password, csrfmiddlewaretoken=token or "", next="/orders/")
