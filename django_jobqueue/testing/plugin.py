"""The pytest plugin; installing django-jobqueue registers it. Needs pytest-django."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .kit import JobQueueKit, Mode

MARKER = "jobqueue(mode='manual'): how the fixture of that name runs jobs: 'manual', 'immediate' or 'real'"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the fixture with ``django_db``; in the mode ``real`` with transactions that commit."""
    for item in items:
        if "jobqueue" in getattr(item, "fixturenames", ()) and item.get_closest_marker("django_db") is None:
            item.add_marker(pytest.mark.django_db(transaction=_mode(item) == "real"))


def _mode(item: pytest.Item) -> Mode:
    marker = item.get_closest_marker("jobqueue")
    given = [] if marker is None else [*marker.args, *marker.kwargs.values()]
    return given[0] if given else "manual"


@pytest.fixture
def jobqueue(request: pytest.FixtureRequest) -> Iterator[JobQueueKit]:
    """Runs jobs and checks them: ``jobqueue.drain()``, ``jobqueue.assert_sent(…)`` and so on."""
    from .kit import JobQueueKit

    with JobQueueKit(_mode(request.node)) as kit:
        yield kit
