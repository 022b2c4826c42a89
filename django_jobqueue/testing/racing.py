from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from django.db import connections

from ..engine.databases import database

PATIENCE_SECONDS = 60


def race(n: int, *functions: Callable[[], Any], using: str | None = None) -> list[Any]:
    """Call ``n`` functions at once, each in its own thread with its own connection, and return what they returned.

    If there are fewer functions than threads, functions are called several times. Raises what a function raises, and
    ``AssertionError`` inside the transaction of a ``TestCase``, because other connections do not see its rows.
    """
    alias = database(using)
    check_committed(alias, "race()")
    barrier = Barrier(n, timeout=PATIENCE_SECONDS)

    def runner(function: Callable[[], Any]) -> Any:
        try:
            connections[alias].ensure_connection()
            barrier.wait()
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(n) as pool:
        futures = [pool.submit(runner, functions[number % len(functions)]) for number in range(n)]
        return [future.result(timeout=PATIENCE_SECONDS) for future in futures]


def check_committed(using: str, what: str) -> None:
    """Raises ``AssertionError`` in the transaction of a ``TestCase``; one that the test itself began is allowed."""
    if any(getattr(block, "_from_testcase", False) for block in connections[using].atomic_blocks):
        raise AssertionError(
            f"{what} uses other connections, which do not see the rows of an open transaction. "
            "Use TransactionTestCase, or @pytest.mark.django_db(transaction=True)."
        )
