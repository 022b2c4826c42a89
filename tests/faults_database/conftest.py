"""A server per module, a laboratory per test."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections

from .cluster import ALIAS, Cluster, started
from .proxy import Proxy
from .runner import Laboratory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, django_db_blocker) -> Iterator[Cluster]:
    """What a module needs otherwise it says in ``CLUSTER``."""
    with django_db_blocker.unblock(), started(**getattr(request.module, "CLUSTER", {})) as one:
        yield one


@pytest.fixture
def lab(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Laboratory]:
    """Its workers are gone at the end, and so are its jobs; of a test that failed, what they logged is shown."""
    laboratory = Laboratory(cluster, tmp_path)
    yield laboratory
    laboratory.close()
    for worker in laboratory.workers:
        print(f"--- {worker.name}\n{worker.output.read_text()}")
        for line in worker.lines()[-60:]:
            print(f"{line.at:.2f} {line.pid} {line.text} {line.facts} {line.error}")
    connections[ALIAS].close()
    if not cluster.server.is_running():
        cluster.server.start()
    cluster.empty()


@pytest.fixture
def proxy(cluster: Cluster, lab: Laboratory) -> Iterator[Proxy]:
    with Proxy(cluster.server.port) as one:
        yield one
        lab.close()  # or workers would go on knocking while it closes


@pytest.fixture
def seed() -> random.Random:
    """Random numbers that can be repeated: ``FAULTS_SEED`` is printed when a test fails."""
    number = int(os.environ.get("FAULTS_SEED") or random.randrange(10**6))
    print(f"FAULTS_SEED={number}")
    return random.Random(number)
