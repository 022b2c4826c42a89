"""The health port: ``/healthz``, ``/readyz`` and, with the extra ``prometheus``, ``/metrics``."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from django.db import connections

from ..conf import get_settings

if TYPE_CHECKING:
    from .housekeeper import Housekeeper


def open_port(port: int) -> socket.socket:
    """Open the port for probes. Raises ``OSError`` if the port is in use."""
    return socket.create_server(("", port))


def serve(find: Callable[[], Housekeeper], listening: socket.socket) -> None:
    """Answer probes about the housekeeper that ``find`` returns, in a thread of its process."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = _answer(find(), self.path.split("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, because probes come every few seconds."""

    server = ThreadingHTTPServer(listening.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="jobqueue-health", daemon=True).start()


def _answer(housekeeper: Housekeeper, path: str) -> tuple[int, str, bytes]:
    if path == "/metrics":
        return _metrics(housekeeper.using)
    if path not in ("/healthz", "/readyz"):
        return 404, "text/plain", b"There are /healthz, /readyz and /metrics.\n"
    silence = time.monotonic() - housekeeper.renewed_at
    with housekeeper.lock:
        children = [child.name for child in housekeeper.children.values() if child.registered]
    well = housekeeper.renewed_at > 0 and silence < get_settings().WORKER_FENCE_SECONDS
    if path == "/readyz":
        well = well and bool(children) and not housekeeper.stopping.is_set()
    facts = {
        "ok": well,
        "children": children,
        "seconds_since_heartbeat": round(silence, 1) if housekeeper.renewed_at else None,
    }
    return 200 if well else 503, "application/json", json.dumps(facts).encode() + b"\n"


def _metrics(using: str) -> tuple[int, str, bytes]:
    from ..prometheus import metrics_text

    try:
        return 200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(using=using)
    except Exception as error:  # the extra is missing, or the database is away: the next scrape may succeed
        return 503, "text/plain; charset=utf-8", f"{error}\n".encode()
    finally:
        connections[using].close()  # each request has a thread of its own
