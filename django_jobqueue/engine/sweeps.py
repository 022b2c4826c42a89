"""Sweeps: going through many jobs in small steps, within bounds if there are any."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import sql
from .databases import rows
from .transactions import in_transaction

AT_ONCE = 200  # rows of one transaction: no more keys than one may lock


@dataclass(slots=True)
class Bounds:
    """How long a sweep may take, how many rows it may read without a match, and where the last sweep stopped."""

    until: float = math.inf
    looks: float = math.inf
    place: dict[str, Any] | None = None
    unfinished: bool = False

    def are_reached(self) -> bool:
        """Whether to stop here and leave the rest to the next sweep."""
        if time.monotonic() < self.until:
            return False
        self.unfinished = True
        return True

    def looked(self, number: int) -> None:
        self.looks -= number

    def stops_looking(self, **place: Any) -> bool:
        """Whether a sweep of which few rows match has read enough rows; the next sweep continues at this place."""
        if self.looks > 0 and not self.are_reached():
            return False
        self.place = place
        self.unfinished = True
        return True


_bounds: ContextVar[Bounds | None] = ContextVar("jobqueue_bounds", default=None)


def bounds() -> Bounds:
    """The bounds of this context; without any a sweep goes through all rows."""
    return _bounds.get() or Bounds()


@contextmanager
def bounded(seconds: float, *, looks: float = math.inf, place: dict[str, Any] | None = None) -> Iterator[Bounds]:
    """Stop the sweeps inside after this time and after reading this many rows; the bounds tell whether they stopped."""
    current = Bounds(time.monotonic() + seconds, looks, place)
    token = _bounds.set(current)
    try:
        yield current
    finally:
        _bounds.reset(token)


def queues_with(using: str, which: str, *, start: str = "") -> list[str]:
    """The queues that have such rows, in the order of their names, beginning with this one."""
    statement = sql.maintain.QUEUES_WITH.format(which=which)
    names = in_transaction(using, partial(rows, using, statement))
    return [name for (name,) in names if name >= start]
