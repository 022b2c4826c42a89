"""Keys that a fetch could not lock, remembered for a moment.

A fetch locks keys for a millisecond or two, so a key that was refused is usually free at the next look. But another
transaction may lock a key for minutes, with thousands of its jobs in front of all others. Reading those again with
every fetch would delay the other keys, so a key that stays refused is skipped for a while before it is tried again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..process_memory import ProcessMemory

PATIENCE = 0.05  # seconds for which a key is refused before it is skipped
LONGEST = 0.25  # seconds for which it is skipped at most, before it is tried again
FORGOTTEN = 2.0  # seconds after which an old refusal no longer counts
MOST_REMEMBERED = 1_000


@dataclass
class _Refusal:
    since: float
    last: float
    next_try: float


@dataclass
class Refusals:
    """The refused keys of one queue, as seen by this process."""

    _keys: dict[str, _Refusal] = field(default_factory=dict)

    def passed_over(self) -> set[str]:
        """The keys to skip at the moment."""
        if not self._keys:
            return set()
        now = time.monotonic()
        return {key for key, refusal in list(self._keys.items()) if now < refusal.next_try}

    def note(self, keys: Collection[str]) -> None:
        """Note that these keys were refused."""
        now = time.monotonic()
        if len(self._keys) + len(keys) > MOST_REMEMBERED:
            self._keys.clear()
        for key in keys:
            known = self._keys.get(key)
            since = now if known is None or now - known.last > FORGOTTEN else known.since
            pause = min((now - since) / 2, LONGEST) if now - since > PATIENCE else 0.0
            self._keys[key] = _Refusal(since, now, now + pause)

    def forget(self, keys: Iterable[str]) -> None:
        """Forget these keys, because they were locked and judged."""
        if self._keys:
            for key in keys:
                self._keys.pop(key, None)


class RefusedKeys(ProcessMemory):
    """The refusals of each queue. A queue is kept; its keys are forgotten as :class:`Refusals` says."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: defaultdict[tuple[str, str], Refusals] = defaultdict(Refusals)

    def of(self, using: str, queue: str) -> Refusals:
        return self._queues[using, queue]

    def forget(self) -> None:
        self._queues.clear()


refusals_of = RefusedKeys().of
