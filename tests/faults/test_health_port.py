"""The health port under many connections: it answers, and workers and the database do not notice."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from django.db import connection

from django_jobqueue.models import Worker
from django_jobqueue.states import JobState
from django_jobqueue.worker.health import MOST_CONNECTIONS
from tests.waiting import until

from .conftest import ends, send
from .test_stopped import free_port, get

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def silent_connections(port: int, number: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(connect(port))) for _ in range(number)]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def threads_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Threads:"))


def answer_to(port: int, request: bytes) -> bytes:
    with closing(connect(port)) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(4096), b""))


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_a_flood_of_connections_reaches_neither_workers_nor_the_database(start):  # F87
    port = free_port()
    worker = start("--health-port", str(port))
    until(lambda: get(port, "/readyz")[0] == 200, "it is ready")
    until(lambda: get(port, "/metrics")[0] == 200, "the modules for metrics are imported")
    housekeeper = worker.housekeeper()
    threads = threads_of(housekeeper)

    with silent_connections(port, 500) as silent:
        assert get(port, "/healthz")[0] == 200
        ends(send("work"), JobState.COMPLETED)
        assert threads_of(housekeeper) <= threads
        silent[500 - MOST_CONNECTIONS - 1].settimeout(2)  # less than a silent connection may stay
        assert silent[500 - MOST_CONNECTIONS - 1].recv(1) == b""  # the oldest are closed

    before = sessions()
    answers: list[int] = []
    scrapes = [threading.Thread(target=lambda: answers.append(get(port, "/metrics")[0])) for _ in range(100)]
    for scrape in scrapes:
        scrape.start()
    most = 0
    while any(scrape.is_alive() for scrape in scrapes):
        most = max(most, sessions())
        scrapes[-1].join(0.01)
    assert answers == [200] * 100
    assert most <= before + 1  # one reads for all

    for path in ("/healthz", "/readyz", "/metrics", "/nothing"):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as client:
            client.request("GET", path)
            answer = client.getresponse()
            shown = f"{answer.getheaders()}{answer.read().decode()}"
        assert socket.gethostname() not in shown
        assert "Server" not in shown

    assert answer_to(port, b"POST /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert answer_to(port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert answer_to(port, b"HEAD /healthz HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")
    assert answer_to(port, b"x" * 100_000)[:1] == b""  # too long: closed without an answer

    assert worker.housekeeper() == housekeeper
    assert Worker.objects.get(stopped_at=None).name == worker.asked_name
    assert "Traceback" not in worker.log
