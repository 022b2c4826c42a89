from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from django.db import connections

from ..engine.databases import database

PATIENCE_SECONDS = 60


def race(n: int, *functions: Callable[[], Any], using: str | None = None) -> list[Any]:
    """Call ``n`` functions at once, each in a thread with a connection of its own; what each returned.

    With fewer functions than threads they are given out in turn. What one raises is raised. Not inside the transaction
    of a ``TestCase``, whose rows nobody else sees: ``AssertionError`` says so.
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
    """``AssertionError`` inside a test's transaction; one that the test began itself may be what it is about."""
    if any(getattr(block, "_from_testcase", False) for block in connections[using].atomic_blocks):
        raise AssertionError(
            f"{what} uses further connections, which see nothing of a transaction that is open. "
            "Use TransactionTestCase, or @pytest.mark.django_db(transaction=True)."
        )
