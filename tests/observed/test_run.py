"""A run with retries, a blocked key and a crash, as metrics and traces show it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.carriers import request_id
from django_jobqueue.models import Job
from tests.faults.runner import database_dsn
from tests.past import reread
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.django_db(transaction=True)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The health port of a worker, which is stopped gracefully after the test if the test did not."""
    services.create_queue("observed")
    services.create_fifo_queue("observed-lanes")
    port = free_port()
    log = (tmp_path / "log").open("wb")
    worker = subprocess.Popen(
        [sys.executable, "-m", "django", "runjobs", "--processes", "1", "--health-port", str(port), "--no-schedules"],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.observed.settings",
            "JOBQUEUE_TEST_DSN": database_dsn(),
            "OBSERVED_SPANS": str(tmp_path / "spans"),
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        },
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    yield port
    worker.send_signal(signal.SIGTERM)
    try:
        assert worker.wait(30) == 0
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        raise
    finally:
        log.close()
        print((tmp_path / "log").read_text())


def spans_of(folder: Path, job: Job) -> list[dict[str, Any]]:
    spans = [json.loads(line) for line in (folder / "spans").read_text().splitlines()]
    return [span for span in spans if span["attributes"].get("messaging.message.id") == str(job.pk)]


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def send(name: str, **options: Any) -> Job:
    queue = "observed-lanes" if options else "observed"
    job: Job | None = services.send(queue, name=f"tests.observed.app.jobs.{name}", **options)
    assert job is not None
    return job


def ends(job: Job, state: str) -> Job:
    until(lambda: reread(job).state == state, f"{job.name} is {state}", 60)
    return reread(job)


def test_metrics_and_traces_tell_of_retries_a_blocked_key_and_a_crash(port, tmp_path, settings):
    settings.JOBQUEUE = {"CARRY": ["django_jobqueue.carriers.RequestId", "django_jobqueue.opentelemetry.Tracing"]}
    with request_id("r-1"):
        retried = send("second_time")
        blocker, behind = (send("never", singleton_key="17", retry_limit=0) for _ in range(2))
    assert ends(retried, "completed").output == "r-1"
    ends(blocker, "failed")

    metrics = scrape(port)
    assert 'jobqueue_blocked_keys{queue="observed-lanes"} 1.0' in metrics
    assert 'jobqueue_jobs{queue="observed-lanes",state="failed"} 1.0' in metrics
    assert 'jobqueue_jobs_held{hold="lane",queue="observed-lanes"} 1.0' in metrics
    assert "jobqueue_scrape_errors 0.0" in metrics

    until(lambda: len(spans_of(tmp_path, retried)) == 2 and spans_of(tmp_path, blocker), "the spans are exported")
    first, second = spans_of(tmp_path, retried)
    assert [span["attributes"]["jobqueue.attempt"] for span in (first, second)] == [1, 2]
    assert [span["status"]["status_code"] for span in (first, second)] == ["ERROR", "UNSET"]
    assert first["events"][0]["attributes"]["exception.type"] == "ConnectionError"
    assert "hunter2" not in json.dumps(first)
    assert {span["kind"] for span in (first, second)} == {"SpanKind.CONSUMER"}
    (blocked,) = spans_of(tmp_path, blocker)
    assert blocked["attributes"]["jobqueue.singleton_key"] == "17"
    assert spans_of(tmp_path, behind) == []

    crashed = send("crash_once")
    ends(crashed, "completed")
    until(lambda: spans_of(tmp_path, crashed), "the span of the second attempt is exported")
    (survivor,) = spans_of(tmp_path, crashed)
    assert survivor["attributes"]["jobqueue.attempt"] == 2  # the first died with its process
