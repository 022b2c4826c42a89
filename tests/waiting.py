"""Waiting for what other threads and processes do: never for a time, always for a fact."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 20.0
T = TypeVar("T")


def until(condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Wait until this is true, and return it; fails with ``what`` when it takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} seconds in vain until {what}")
        time.sleep(0.01)
    return found
