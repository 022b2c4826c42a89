"""From which queue a child claims next."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import takewhile

from ..queue_order import QueueOrder
from .options import WorkerOptions


class FairTurns:
    """The queues in turn: one that was read goes behind the others."""

    def __init__(self) -> None:
        self._names: deque[str] = deque()

    def serve(self, names: list[str]) -> None:
        """These are the queues from now on, in the order given."""
        if set(self._names) != set(names):
            self._names = deque(names)

    def in_turn(self) -> list[str]:
        return list(self._names)

    def end(self, name: str) -> None:
        """The queue is being read."""
        self._names.remove(name)
        self._names.append(name)

    def count(self, name: str, jobs: int) -> None:
        """So many jobs were claimed from the queue."""

    def is_next(self, name: str, due: set[str]) -> bool:
        """Whether the next turn is that of this queue, if these may have jobs."""
        return name in due and self._names[0] == name

    def goes_before(self, name: str, due: set[str]) -> bool:
        """Whether one of these queues goes before this one, in the order given."""
        return any(one in due for one in takewhile(lambda one: one != name, self._names))


class StrictTurns(FairTurns):
    """The queues in the order given: from a later one only if the earlier ones have no fetchable jobs."""

    def end(self, name: str) -> None:
        """The order stays."""

    def is_next(self, name: str, due: set[str]) -> bool:
        return name in due and not self.goes_before(name, due)


class WeightedTurns(FairTurns):
    """Each queue in proportion to its weight: next is the one that got the fewest jobs for its weight.

    A queue that had no jobs does not save up turns: it begins where the others are.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        super().__init__()
        self._weights = weights
        self._shares: dict[str, float] = {}  # the jobs of each queue, divided by its weight
        self._level = 0.0  # the share of the queue that was last chosen

    def in_turn(self) -> list[str]:
        return sorted(self._names, key=self._share)  # of equal shares, the one that was given first

    def _share(self, name: str) -> float:
        return max(self._shares.get(name, 0.0), self._level)

    def end(self, name: str) -> None:
        """What counts are the jobs."""

    def count(self, name: str, jobs: int) -> None:
        if jobs:
            share = self._share(name)
            self._shares[name] = share + jobs / self._weights.get(name, 1)
            self._level = share

    def is_next(self, name: str, due: set[str]) -> bool:
        return next((one for one in self.in_turn() if one in due), None) == name


def turns_of(options: WorkerOptions) -> FairTurns:
    if options.queue_order == QueueOrder.STRICT:
        return StrictTurns()
    if options.queue_order == QueueOrder.WEIGHTED:
        return WeightedTurns(options.own)
    return FairTurns()
