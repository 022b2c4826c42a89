"""The recipe for Sentry, with its real SDK, against a server in this process."""

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
def test_sentry_hears_of_errors_and_not_of_decisions(sentry):
    services.create_queue("sentry")
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.observed.sentry_settings",
        "JOBQUEUE_TEST_DSN": database_dsn(),
        "SENTRY_DSN": sentry.dsn,
        "PYTHONPATH": str(ROOT),
    }

    done = subprocess.run(
        [sys.executable, "-m", "tests.observed.sentry_run"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    events = sentry.events
    told = [(event["exception"]["values"][-1]["type"], event["contexts"]["job"]["attempt"]) for event in events]
    assert told == [("ValueError", 1), ("ValueError", 2), ("LookupError", 1)]
    assert {event["tags"]["jobqueue.queue"] for event in events} == {"sentry"}
    assert events[0]["tags"]["jobqueue.handler"].endswith("fails")
    assert events[0]["exception"]["values"][-1]["value"] == "order 7 is gone"
