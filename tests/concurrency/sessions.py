"""Connections that a test steers by hand: one thread each, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from django.db import connection, connections, transaction

DEADLINE = 10.0  # generous: nothing that is not stuck takes so long

T = TypeVar("T")


class Session:
    """A second connection. ``run`` waits for its step, ``start`` does not; a transaction stays open between steps."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._block: transaction.Atomic | None = None
        self.pid: int = self.run(lambda: scalar("SELECT pg_backend_pid()"))

    def start(self, step: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
        return self._thread.submit(step, *args, **kwargs)

    def run(self, step: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.start(step, *args, **kwargs).result(DEADLINE)

    def begin(self, isolation: str = "READ COMMITTED") -> None:
        self.run(self._begin, isolation)

    def commit(self) -> None:
        self.run(self._end, True)

    def rollback(self) -> None:
        self.run(self._end, False)

    def start_blocked(self, step: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
        """Start a step, and return when the server says that it waits for a lock."""
        future = self.start(step, *args, **kwargs)
        self.until_done_or_waiting(future)
        assert not future.done(), f"it did not wait, but {outcome(future)}"
        return future

    def start_commit(self) -> Future[None]:
        """Commit, and return when that and all that follows a commit is done, or waits for a lock."""
        future = self.start(self._end, True)
        self.until_done_or_waiting(future)
        return future

    def until_done_or_waiting(self, future: Future[Any]) -> None:
        until(lambda: future.done() or self.is_waiting())

    def is_waiting(self) -> bool:
        """Whether the server says that this session waits for a lock of another session."""
        return bool(scalar("SELECT cardinality(pg_blocking_pids(%s))", self.pid))

    def close(self) -> None:
        """End the session whatever it is doing, so that no other session waits for it."""
        scalar("SELECT pg_terminate_backend(%s)", self.pid)
        self._thread.submit(connections.close_all)
        self._thread.shutdown(wait=True, cancel_futures=False)

    def _begin(self, isolation: str) -> None:
        self._block = transaction.atomic()
        self._block.__enter__()
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")

    def _end(self, commit: bool) -> None:
        assert self._block is not None
        if not commit:
            transaction.set_rollback(True)
        block, self._block = self._block, None
        block.__exit__(None, None, None)


def scalar(sql: str, *params: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()[0]


def until(happened: Callable[[], bool]) -> None:
    """Look again and again for what another process does; fail at the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def outcome(future: Future[Any]) -> str:
    error = future.exception()
    return f"raised {error!r}" if error else f"returned {future.result()!r}"
