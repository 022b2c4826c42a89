"""Which queues a worker serves that is not told which."""

from __future__ import annotations

from .. import handlers
from ..conf import declared_queues
from ..models import Queue


def queues_of_workers(*, using: str) -> list[str]:
    """The declared queues that exist, without those that keep the dead letters of another queue, by name.

    Declared are those that the settings or the handlers of this code name.
    """
    declared = declared_queues() | handlers.served(handlers.all_handlers())
    stored = dict(Queue.objects.using(using).values_list("name", "dead_letter_id"))
    return sorted((declared & stored.keys()) - set(stored.values()))
