"""Finding and checking the queue that is given to a verb."""

from __future__ import annotations

from typing import NamedTuple

from ..conf import get_settings
from ..exceptions import QueueNotFound
from ..models import Queue
from ..process_memory import ProcessMemory
from .databases import named


class KnownQueue(NamedTuple):
    """The options of a queue that never change, so that a fetch can check them in its own statement, not before it."""

    policy: str
    partition: bool
    leaf: str


class QueueChanged(Exception):
    """The queue was deleted, or another queue has its name."""


class KnownQueues(ProcessMemory):
    """The queues that this process has fetched from, by database and name; each fetch checks that they are current."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, str], KnownQueue] = {}

    def get(self, using: str, name: str) -> KnownQueue | None:
        return self._known.get((using, name))

    def remember(self, using: str, name: str, queue: KnownQueue) -> None:
        self._known[using, name] = queue

    def drop(self, using: str, name: str) -> None:
        self._known.pop((using, name), None)

    def forget(self) -> None:
        self._known.clear()


known_queues = KnownQueues()


def check_exists(queue: object, using: str) -> Queue:
    """The queue, given by its name or as a ``Queue``. Raises ``QueueNotFound``."""
    name = named(queue)
    found = Queue.objects.using(using).filter(pk=name).first()
    if found is None:
        raise no_queue(name, using)
    return found


def no_queue(name: str, using: str) -> QueueNotFound:
    known = Queue.objects.using(using).values_list("name", flat=True)[:1000]
    return QueueNotFound(name, known, is_declared=name in get_settings().QUEUES)
