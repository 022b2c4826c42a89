"""The number of waiting jobs, counted along the indexes of waiting jobs, up to a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from . import sql
from .databases import Rows, rows
from .transactions import in_transaction

MOST = 100_000  # jobs of one queue and kind that are counted; a higher number is "at least"


def count_waiting(state: str, queues: Iterable[str] | None, most: int, using: str) -> Rows:
    """Rows of queue, state, hold and number, for these queues or all; ``state`` is the SQL of the state column."""
    params = {"queues": None if queues is None else list(queues), "most": most}
    return in_transaction(using, partial(rows, using, sql.inspect.WAITING.format(state=state), params))


def total_waiting(queues: Iterable[str] | None = None, *, at_least: int = 0, using: str) -> Counter[str]:
    """The number of waiting jobs of each of these queues or of all: exact up to ``MOST`` per kind, or ``at_least``."""
    numbers: Counter[str] = Counter()
    for queue, _, _, number in count_waiting("''", queues, max(MOST, at_least), using):
        numbers[queue] += number
    return numbers
