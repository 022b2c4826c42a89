"""How many jobs of a worker ended, and how."""

from __future__ import annotations

import logging
from dataclasses import astuple, dataclass

from ..log_texts import duration

logger = logging.getLogger("django_jobqueue.worker")


@dataclass(slots=True)
class Tally:
    """Jobs by how their attempts ended; attempts of processes that crashed are not counted."""

    completed: int = 0
    stopped: int = 0  # cancelled, by an operator or by their handler
    failed: int = 0  # for good
    retried: int = 0  # failed attempts after which another follows
    snoozed: int = 0

    @property
    def ended(self) -> int:
        """Jobs that get no other attempt."""
        return self.completed + self.stopped + self.failed

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Tally) -> Tally:
        return Tally(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        """The numbers, as in ``5 completed, 1 failed, 2 retried``; rare endings are left out if there are none."""
        parts = [f"{self.completed:,} completed", f"{self.failed:,} failed", f"{self.retried:,} retried"]
        parts += [f"{self.stopped:,} cancelled"] if self.stopped else []
        parts += [f"{self.snoozed:,} snoozed"] if self.snoozed else []
        return ", ".join(parts)


def log_stopped(worker: str, tally: Tally, seconds: float) -> None:
    """Log what a worker did, when all of it has ended."""
    logger.info(
        "worker stopped: %s, jobs %s, in %s",
        worker,
        tally,
        duration(seconds),
        extra={
            "worker": worker,
            "completed": tally.completed,
            "failed": tally.failed,
            "retried": tally.retried,
            "cancelled": tally.stopped,
            "snoozed": tally.snoozed,
            "seconds": round(seconds, 3),
        },
    )
