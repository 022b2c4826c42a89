"""Which queues a worker serves that is not told which."""

from __future__ import annotations

from .. import handlers
from ..conf import get_settings, task_queues
from ..models import Queue


def declared_queues() -> set[str]:
    """The queues that the settings and the handlers of this code name, whether they exist or not."""
    return {"default", *get_settings().QUEUES, *task_queues()} | handlers.served(handlers.all_handlers())


def queues_of_workers(*, using: str) -> list[str]:
    """The declared queues that exist, without those that keep the dead letters of another queue, by name."""
    stored = dict(Queue.objects.using(using).values_list("name", "dead_letter_id"))
    return sorted((declared_queues() & stored.keys()) - set(stored.values()))
