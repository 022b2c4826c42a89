"""The health port: ``/healthz``, ``/readyz`` and, with the extra ``prometheus``, ``/metrics``.

One thread answers all connections, so that a flood of them costs no threads; one more reads the database for all
scrapes at once. Connections that send nothing are closed after a while, the oldest at once when there are many.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from ..conf import get_settings
from ..log_texts import error_line

if TYPE_CHECKING:
    from .housekeeper import Housekeeper

logger = logging.getLogger("django_jobqueue.worker")

MOST_CONNECTIONS = 200  # that have sent no request yet; and so many that wait for an answer
MOST_BYTES = 16_384  # of a request
REQUEST_SECONDS = 5.0  # for all of a request, and again for all of its answer
SAME_METRICS_SECONDS = 1.0  # scrapes within this time get the same answer

Answer = tuple[int, str, bytes]  # the status, the type and the body
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
TEXT = "text/plain; charset=utf-8"


def open_port(port: int) -> socket.socket:
    """Open the port for probes. Raises ``OSError`` if the port is in use."""
    return socket.create_server(("", port), backlog=MOST_CONNECTIONS)


def serve(find: Callable[[], Housekeeper], listening: socket.socket) -> None:
    """Answer probes about the housekeeper that ``find`` returns, in a thread of its process."""
    port = HealthPort(find, listening)
    threading.Thread(target=asyncio.run, args=(port.run(),), name="jobqueue-health", daemon=True).start()


class HealthPort:
    """Answers requests until the process ends."""

    def __init__(self, find: Callable[[], Housekeeper], listening: socket.socket) -> None:
        self._find, self._listening = find, listening
        self._silent: dict[asyncio.StreamWriter, None] = {}  # connections without a request, the oldest first
        self._answering = 0
        self._scrape: asyncio.Future[Answer] | None = None
        self._scraped_at = 0.0

    async def run(self) -> None:
        server = await asyncio.start_server(
            self._serve, sock=self._listening, limit=MOST_BYTES, backlog=MOST_CONNECTIONS
        )
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await self._request(reader, writer)
            if self._answering < MOST_CONNECTIONS:
                self._answering += 1
                try:
                    await self._send(await self._answer(request), writer, has_body=not request.startswith(b"HEAD "))
                finally:
                    self._answering -= 1
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the other side is slow, sends no request, or is gone
        finally:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        self._silent[writer] = None
        if len(self._silent) > MOST_CONNECTIONS:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                return await reader.readuntil(b"\r\n\r\n")
        finally:
            self._silent.pop(writer, None)

    async def _send(self, answer: Answer, writer: asyncio.StreamWriter, *, has_body: bool) -> None:
        status, kind, body = answer
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        async with asyncio.timeout(REQUEST_SECONDS):
            writer.write(head.encode() + (body if has_body else b""))
            writer.close()
            await writer.wait_closed()

    async def _answer(self, request: bytes) -> Answer:
        method, _, rest = request.split(b"\r\n", 1)[0].partition(b" ")
        target, _, version = rest.rpartition(b" ")
        if not version.startswith(b"HTTP/"):
            return 400, TEXT, b"This is not an HTTP request.\n"
        if method not in (b"GET", b"HEAD"):
            return 405, TEXT, b"Only GET is answered.\n"
        path = target.split(b"?")[0]
        if path == b"/metrics":
            return await self._metrics()
        if path in (b"/healthz", b"/readyz"):
            return _health(self._find(), is_ready=path == b"/readyz")
        return 404, TEXT, b"There are /healthz, /readyz and /metrics.\n"

    async def _metrics(self) -> Answer:
        """The answer of the scrape that runs or has just ended, or of a new one."""
        is_recent = time.monotonic() - self._scraped_at < SAME_METRICS_SECONDS
        if self._scrape is None or (self._scrape.done() and not is_recent):
            self._scrape = asyncio.get_running_loop().create_future()
            read = (asyncio.get_running_loop(), self._scrape, self._find().using)
            threading.Thread(target=self._read, args=read, name="jobqueue-metrics", daemon=True).start()
        return await asyncio.shield(self._scrape)

    def _read(self, loop: asyncio.AbstractEventLoop, scrape: asyncio.Future[Answer], using: str) -> None:
        answer = _scraped(using)
        self._scraped_at = time.monotonic()
        loop.call_soon_threadsafe(scrape.set_result, answer)


def _health(housekeeper: Housekeeper, *, is_ready: bool) -> Answer:
    """Whether the worker sends heartbeats. The names of workers are left out, because they contain those of hosts."""
    silence = time.monotonic() - housekeeper.renewed_at
    with housekeeper.lock:
        children = sum(child.registered for child in housekeeper.children.values())
    well = housekeeper.renewed_at > 0 and silence < get_settings().WORKER_FENCE_SECONDS
    if is_ready:
        well = well and children > 0 and not housekeeper.stopping.is_set()
    facts = {
        "ok": well,
        "children": children,
        "seconds_since_heartbeat": round(silence, 1) if housekeeper.renewed_at else None,
    }
    return 200 if well else 503, "application/json", json.dumps(facts).encode() + b"\n"


def _scraped(using: str) -> Answer:
    from ..prometheus import metrics_text

    try:
        return 200, "text/plain; version=0.0.4; charset=utf-8", metrics_text(using=using)
    except ImproperlyConfigured as error:  # the extra is missing
        return 503, TEXT, f"{error}\n".encode()
    except Exception as error:  # mostly, the database is away; its error may name hosts, so it is only logged
        logger.warning("metrics could not be read: %s", error_line(error), extra={"error": error_line(error)})
        return 503, TEXT, b"The metrics could not be read: see the log of the worker.\n"
    finally:
        connections[using].close()
