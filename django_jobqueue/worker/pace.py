"""How long handlers take: this decides how many jobs to claim ahead and how many to give to a thread at once."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from .outcomes import Result

CHUNK_SECONDS = 0.001
MOST_IN_CHUNK = 200


class HandlerPace:
    """A moving average of the seconds that plain handlers took; the newest have the most weight."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # None until a plain handler has ended

    def update(self, batch: Sequence[Result], asynchronous: set[UUID]) -> None:
        """Add these results, except those of asynchronous handlers."""
        average = self.seconds
        for job, _, seconds in batch:
            if seconds and not (asynchronous and job.id in asynchronous):
                average = seconds if average is None else average + (seconds - average) * 0.05
        self.seconds = average

    def slow_down(self, seconds: float) -> None:
        """Record that handlers take at least this long at the moment, although none of them has ended."""
        self.seconds = max(self.seconds or 0.0, seconds)

    def jobs_within(self, seconds: float, threads: int) -> int:
        """How many jobs these threads are expected to run in that time."""
        return 0 if self.seconds is None else int(threads * seconds / max(self.seconds, 1e-6))

    def chunk_size(self) -> int:
        """How many jobs a thread takes at once: enough for a millisecond, because taking a job costs time too."""
        if not self.seconds:
            return 1
        return max(1, min(MOST_IN_CHUNK, int(CHUNK_SECONDS / self.seconds)))
