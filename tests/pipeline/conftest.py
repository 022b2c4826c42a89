"""One Spark session for the whole run, on a real JVM; all these tests go to one worker of pytest-xdist."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .machine import why_not

CPUS = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group("spark"))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session, with its event log in a folder that tests may search."""
    from django_jobqueue.pipeline import archiving
    from django_jobqueue.pipeline.session import spark_session

    monkeypatch = pytest.MonkeyPatch()
    # An archive rests, to leave the machine to others. Tests of that say for how long.
    monkeypatch.setattr(archiving, "REST", 0.0)
    defaults = archiving.archive_jobs.__kwdefaults__ or {}
    monkeypatch.setattr(archiving.archive_jobs, "__kwdefaults__", {**defaults, "rest": 0.0})
    events = tmp_path_factory.mktemp("events")
    config = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        # Everything here is small, so what would make large things quick only costs time.
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of py4j's sockets, which stay open
        with spark_session(f"local[{CPUS},4]", config=config) as spark:
            spark.events = events  # type: ignore[attr-defined]
            yield spark
    monkeypatch.undo()


@pytest.fixture
def spark(session: Any, transactional_db: None) -> Any:
    return session


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")
