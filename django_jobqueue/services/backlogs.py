"""How much waits, and a warning where it is too much."""

from __future__ import annotations

from ..engine.databases import database
from ..engine.transactions import logger
from ..models import Queue
from ..signals import queue_backlog
from .inspect import MOST, total_waiting


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
