"""How many jobs wait: counted along the indexes of what waits, up to a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from . import sql
from .databases import Rows, rows
from .transactions import in_transaction

MOST = 100_000  # of one queue and kind that are counted; with more it is "at least"


def count_waiting(state: str, queues: Iterable[str] | None, most: int, using: str) -> Rows:
    """Queue, state, hold and number, in these queues or in all; ``state`` is the SQL of the second."""
    params = {"queues": None if queues is None else list(queues), "most": most}
    return in_transaction(using, partial(rows, using, sql.inspect.WAITING.format(state=state), params))


def total_waiting(queues: Iterable[str] | None = None, *, at_least: int = 0, using: str) -> Counter[str]:
    """How many jobs wait in each of these queues or of all: exact up to ``MOST`` of each kind, or ``at_least``."""
    numbers: Counter[str] = Counter()
    for queue, _, _, number in count_waiting("''", queues, max(MOST, at_least), using):
        numbers[queue] += number
    return numbers
