"""The pytest plugin; it registers itself where django-jobqueue is installed. Needs pytest-django."""

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
    """A test that uses the fixture uses the database; with a worker beside it, one that commits."""
    for item in items:
        if "jobqueue" in getattr(item, "fixturenames", ()) and item.get_closest_marker("django_db") is None:
            item.add_marker(pytest.mark.django_db(transaction=_mode(item) == "real"))


def _mode(item: pytest.Item) -> Mode:
    marker = item.get_closest_marker("jobqueue")
    given = [] if marker is None else [*marker.args, *marker.kwargs.values()]
    return given[0] if given else "manual"


@pytest.fixture
def jobqueue(request: pytest.FixtureRequest) -> Iterator[JobQueueKit]:
    """Runs and looks at jobs: ``jobqueue.drain()``, ``jobqueue.assert_sent(…)`` and so on."""
    from .kit import JobQueueKit

    with JobQueueKit(_mode(request.node)) as kit:
        yield kit
