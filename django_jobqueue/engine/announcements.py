"""Sending the signals of :mod:`django_jobqueue.signals`: after the commit, and at no cost when nobody listens.

A receiver that raises is logged by Django and keeps nobody else from hearing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from ..models import Job
from ..policies import ORDERED
from ..signals import job_sent, key_blocked, key_released
from ..states import DEAD
from .transactions import after_commit

if TYPE_CHECKING:
    from .transitions import Change


Hear = Callable[[str, str, list[UUID]], None]


class SendListeners:
    """Who is told of sends before the commit: the testing kit alone, as long as its ``with`` lasts."""

    def __init__(self) -> None:
        self.listeners: list[Hear] = []

    @contextmanager
    def hearing(self, hear: Hear) -> Iterator[None]:
        """Call ``hear(database, queue, ids)`` at each send."""
        self.listeners.append(hear)
        try:
            yield
        finally:
            self.listeners.remove(hear)


before_commit = SendListeners()


def sent(using: str, queue: str, ids: list[UUID]) -> None:
    """Jobs were stored."""
    for hear in before_commit.listeners:
        hear(using, queue, ids)
    if job_sent.receivers and ids:
        after_commit(using, partial(job_sent.send_robust, Job, ids=ids, queue=queue, using=using))


def moved(using: str, jobs: Iterable[Job], changes: Mapping[UUID, Change]) -> None:
    """Jobs changed their states: keys may be blocked by that, or no longer."""
    if not (key_blocked.receivers or key_released.receivers):
        return
    blocked, released = [], []
    for job in jobs:
        if job.policy != ORDERED:
            continue
        was, is_ = job.state in DEAD, changes[job.pk].state in DEAD
        if is_ and not was:
            blocked.append((job.queue_id, job.singleton_key, job.pk))
        elif was and not is_:
            released.append((job.queue_id, job.singleton_key))
    if blocked:
        after_commit(using, partial(_tell_blocked, blocked))
    keys_released(using, released)


def deleted(using: str, jobs: Iterable[Job]) -> None:
    """Jobs were deleted by an operator; those that blocked their keys do so no longer."""
    if key_released.receivers:
        dead = [job for job in jobs if job.policy == ORDERED and job.state in DEAD]
        keys_released(using, [(job.queue_id, job.singleton_key) for job in dead])


def keys_released(using: str, keys: Iterable[tuple[str, str]]) -> None:
    """An operator let these keys go, each given with its queue."""
    found = list(keys)
    if found and key_released.receivers:
        after_commit(using, partial(_tell_released, found))


def _tell_blocked(keys: Iterable[tuple[str, str, UUID]]) -> None:
    for queue, key, id in keys:
        key_blocked.send_robust(Job, queue=queue, key=key, id=id)


def _tell_released(keys: Iterable[tuple[str, str]]) -> None:
    for queue, key in keys:
        key_released.send_robust(Job, queue=queue, key=key)
