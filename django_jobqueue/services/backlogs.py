"""How much waits, and a warning where it is too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from ..engine.sql import statements
from ..engine.transactions import database, in_transaction, logger, rows
from ..models import Queue
from ..signals import queue_backlog

MOST = 100_000  # of one queue and kind that are counted; with more it is "at least"


class Waiting(NamedTuple):
    """Jobs of a queue that wait, in one state and for one reason."""

    queue: str
    state: str
    hold: str | None
    number: int


def waiting(queues: Iterable[str] | None = None, *, most: int = MOST, using: str) -> list[Waiting]:
    """Count what waits in these queues or in all, along the indexes of that: exact up to ``most`` of each kind."""
    return [Waiting(*row) for row in _counted("state", queues, most, using)]


def _counted(state: str, queues: Iterable[str] | None, most: int, using: str) -> list[tuple[Any, ...]]:
    params = {"queues": None if queues is None else list(queues), "most": most}
    return in_transaction(using, partial(rows, using, statements.WAITING.format(state=state), params))


def total_waiting(queues: Iterable[str] | None = None, *, most: int | None = None, using: str) -> Counter[str]:
    """How many jobs wait in each of these queues or of all: exact up to ``most`` of each kind, or ``MOST``."""
    numbers: Counter[str] = Counter()
    for queue, _, _, number in _counted("''", queues, most or MOST, using):
        numbers[queue] += number
    return numbers


def warn_backlogs(*, using: str | None = None) -> dict[str, int]:
    """Queues with more waiting jobs than their ``warning_queue_size``: a log line and a signal for each.

    Far more than a hundred thousand are not counted to the end.
    """
    using = database(using)
    watched = {queue.name: queue for queue in Queue.objects.using(using).filter(warning_queue_size__isnull=False)}
    if not watched:
        return {}
    largest = max(queue.warning_queue_size or 0 for queue in watched.values())
    numbers = total_waiting(watched, most=max(MOST, largest + 1), using=using)
    backlogs = {
        name: numbers[name] for name, queue in watched.items() if numbers[name] > (queue.warning_queue_size or 0)
    }
    for name, size in backlogs.items():
        queue = watched[name]
        logger.warning("backlog", extra={"queue": name, "waiting": size, "limit": queue.warning_queue_size})
        queue_backlog.send_robust(sender=Queue, queue=queue, waiting=size)
    return backlogs
