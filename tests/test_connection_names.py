"""The names of connections: what is kept of them, and what the project has set."""

from __future__ import annotations

import pytest
from django.db import connections

from django_jobqueue.connection_names import MOST_BYTES, OPTION, name_thread, named

LONG = "ip-10-0-0-12.eu-central-1.compute.internal-12345"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name that the machine of the test has set."""
    monkeypatch.delenv("PGAPPNAME", raising=False)


def name_of(role: str, worker: str = "") -> str:
    connection = connections["default"]
    before = connection.settings_dict
    try:
        name_thread(connection, role, worker)
        return str(connection.settings_dict["OPTIONS"][OPTION])
    finally:
        connection.settings_dict = before


def test_a_thread_is_named_after_its_worker_and_its_work(given):
    assert name_of("listener", "web1-4711") == "work web1-4711 listener"
    assert name_of("stream") == "jobqueue stream"


def test_a_name_of_the_project_comes_first(given, monkeypatch):
    monkeypatch.setenv("PGAPPNAME", "shop")
    assert name_of("stream") == "shop: jobqueue stream"


@pytest.mark.parametrize("prefix", ("", "shop", "the-shop-of-finn-with-a-very-long-name"))
def test_a_name_that_is_too_long_keeps_the_work_and_the_process_id(given, monkeypatch, prefix):
    monkeypatch.setenv("PGAPPNAME", prefix)

    name = name_of("heartbeat", LONG)

    assert len(name) <= MOST_BYTES
    assert name.endswith("internal-12345 heartbeat")
    assert name.startswith(prefix[:4])


def test_other_characters_do_not_make_it_longer(given):
    assert name_of("listener", "Käse\n" * 3) == "work K?se?K?se?K?se? listener"


def test_a_command_names_only_the_connection_it_opens(given):
    before = connections["default"].settings_dict

    with named("default", "jobs list"):
        assert connections["default"].settings_dict["OPTIONS"][OPTION] == "jobqueue jobs list"

    assert connections["default"].settings_dict is before
