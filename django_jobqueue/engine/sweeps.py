"""Going through many jobs in small steps, within bounds if somebody set them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from ..querysets import JobQuerySet
from . import sql
from .databases import rows
from .transactions import in_transaction

AT_ONCE = 200  # rows of one transaction: no more keys than one may lock
WHERE_RUNNING = ("assignee", "queue_id")  # the order of the index of what runs


@dataclass(slots=True)
class Bounds:
    """How long a sweep may take, how many rows it may look at in vain, and where the last one stopped."""

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
        """Whether a sweep that looks at rows of which few are meant has looked enough; the next goes on there."""
        if self.looks > 0 and not self.are_reached():
            return False
        self.place = place
        self.unfinished = True
        return True


_bounds: ContextVar[Bounds | None] = ContextVar("jobqueue_bounds", default=None)


def bounds() -> Bounds:
    """The bounds that are set; without any a sweep goes through everything."""
    return _bounds.get() or Bounds()


@contextmanager
def bounded(seconds: float, *, looks: float = math.inf, place: dict[str, Any] | None = None) -> Iterator[Bounds]:
    """Let the sweeps inside stop after that time, and after that many looks; whether they did, the bounds tell."""
    set_ = Bounds(time.monotonic() + seconds, looks, place)
    token = _bounds.set(set_)
    try:
        yield set_
    finally:
        _bounds.reset(token)


def found(using: str, which: JobQuerySet, order: tuple[str, ...] = WHERE_RUNNING) -> list[UUID]:
    """The ids that are meant, read along the index that has this order, whatever the planner believes."""
    ids = which.order_by(*order).values_list("pk", flat=True)
    return sorted(in_transaction(using, partial(list, ids)))


def queues_with(using: str, which: str, *, start: str = "") -> list[str]:
    """The queues that have such rows, in the order of their names, beginning with this one."""
    statement = sql.maintain.QUEUES_WITH.format(which=which)
    names = in_transaction(using, partial(rows, using, statement))
    return [name for (name,) in names if name >= start]
