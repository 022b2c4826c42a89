"""A worker that reports to Sentry as the documentation says, with its real SDK, to a server in this process."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from django_jobqueue import services
from tests.faults.runner import database_dsn

ROOT = Path(__file__).parent.parent.parent


class Sentry(ThreadingHTTPServer):
    """Receives envelopes, as Sentry does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.events: list[dict[str, Any]] = []
        self.transactions: list[str] = []

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_address[1]}/1"


class Receiver(BaseHTTPRequestHandler):
    server: Sentry

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        items = [json.loads(line) for line in body.splitlines() if line]
        self.server.events += [item for item in items if "exception" in item or "logentry" in item]
        self.server.transactions += [
            item["transaction"] for item in items if item.get("type") == "transaction" and "spans" in item
        ]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    server = Sentry()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_worker_reports_what_fails_in_its_children_before_they_exit(sentry):
    services.create_queue("sentry")
    for name in ("never", "never_async", "second_time"):
        services.send("sentry", name=f"tests.observed.app.jobs.{name}", retry_limit=1, retry_delay=0)
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.observed.sentry_settings",
        "JOBQUEUE_TEST_DSN": database_dsn(),
        "SENTRY_DSN": sentry.dsn,
        "PYTHONPATH": str(ROOT),
    }

    done = subprocess.run(
        [sys.executable, "-m", "django", "runjobs", "--drain", "--queue", "sentry", "--processes", "2"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    told = sorted(
        (event["tags"]["jobqueue.handler"].rpartition(".")[2], event["tags"]["jobqueue.attempt"], event["level"])
        for event in sentry.events
    )
    assert told == [
        ("never", "1", "warning"),
        ("never", "2", "error"),
        ("never_async", "1", "warning"),
        ("never_async", "2", "error"),
        ("second_time", "1", "warning"),
    ]
    assert {event["exception"]["values"][-1]["type"] for event in sentry.events} == {"ValueError", "ConnectionError"}
    assert [name for name in sentry.transactions if name.endswith("second_time")] == 2 * [
        "tests.observed.app.jobs.second_time"
    ]
