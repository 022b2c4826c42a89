"""The queue that a verb names."""

from __future__ import annotations

from django.db import ProgrammingError

from ..encoding import check_text
from ..exceptions import QueueNotFound
from ..models import Queue
from .databases import explain_missing_tables


def named(queue: object) -> str:
    """The name that is meant, by text or by the queue itself; ``InvalidOption`` for what cannot be one."""
    if type(queue) is str and queue.isascii() and "\0" not in queue:  # which is nearly always
        return queue
    if isinstance(queue, Queue):
        return queue.name
    return check_text(queue, option="queue", max_length=1_000_000, required=True)


def check_exists(queue: object, using: str) -> Queue:
    """The queue that is meant, or ``QueueNotFound``."""
    name = named(queue)
    try:
        found = Queue.objects.using(using).filter(pk=name).first()
    except ProgrammingError as error:
        explain_missing_tables(error, using)
        raise
    if found is None:
        raise no_queue(name, using)
    return found


def no_queue(name: str, using: str) -> QueueNotFound:
    return QueueNotFound(name, Queue.objects.using(using).values_list("name", flat=True)[:1000])
