"""Counts of waiting, running, completed and failed jobs per queue: along indexes up to a limit, or from statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum
from django.utils import timezone

from ..models import Queue, QueueMinute
from ..services.inspect import backlog

MOST = 1_000  # counts of one queue and kind stop here and are shown with a plus sign
MOST_RUNNING = 10_000


@dataclass(slots=True)
class Figures:
    """One queue, now and in the last hour."""

    waiting: int = 0
    is_capped: bool = False
    running: int = 0
    oldest_seconds: float | None = None
    completed: int = 0
    failed: int = 0
    sent: int = 0

    @property
    def waiting_text(self) -> str:
        return f"{self.waiting:,}{'+' if self.is_capped else ''}"

    @property
    def failure_rate(self) -> str:
        """The share of failed jobs in those that ended in the last hour."""
        ended = self.completed + self.failed
        return f"{self.failed / ended:.1%}" if ended else "0 %"

    @property
    def running_text(self) -> str:
        return f"{self.running:,}{'+' if self.running >= MOST_RUNNING else ''}"


def figures_of(queues: Iterable[str], *, using: str) -> dict[str, Figures]:
    """The figures of these queues, read by four statements."""
    names = list(queues)
    by_queue = {name: Figures() for name in names}
    for kind in backlog.waiting(names, most=MOST + 1, using=using):
        figures = by_queue[kind.queue]
        figures.waiting += min(kind.number, MOST)
        figures.is_capped |= kind.number > MOST
    for queue, _, number in backlog.running(most=MOST_RUNNING, using=using):
        if queue in by_queue:
            by_queue[queue].running += number
    for queue, seconds in backlog.oldest_fetchable(using=using).items():
        if queue in by_queue:
            by_queue[queue].oldest_seconds = seconds
    for queue, sent, completed, failed in _last_hour(names, using):
        figures = by_queue[queue]
        figures.sent, figures.completed, figures.failed = sent, completed, failed
    return by_queue


def _last_hour(names: Sequence[str], using: str) -> list[tuple[str, int, int, int]]:
    minutes = QueueMinute.objects.using(using).filter(queue__in=names, minute__gte=_ago(timedelta(hours=1)))
    summed = minutes.order_by().values("queue_id").annotate(s=Sum("sent"), c=Sum("completed"), f=Sum("failed"))
    return [(row["queue_id"], row["s"], row["c"], row["f"]) for row in summed]


def _ago(delta: timedelta) -> datetime:
    return timezone.now() - delta


def all_queues(using: str) -> list[str]:
    return list(Queue.objects.using(using).values_list("name", flat=True)[:500])
