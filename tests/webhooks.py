"""A webhook that keeps what it receives, and answers as a test tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook:
    """Answers with ``status``; while ``silent`` is not set, it does not answer at all."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.status, self.headers = 200, {"Content-Length": "0"}
        self.answers = threading.Event()
        self.answers.set()
        self.url = ""


@contextmanager
def webhook() -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            hook.answers.wait(30)
            self.send_response(hook.status)
            for name, value in hook.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def do_GET(self) -> None:
            hook.received.append(f"GET {self.path}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook/T0KEN"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        hook.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()
