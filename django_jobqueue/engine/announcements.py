"""After a commit: notify workers, tell the streams of this process, and send signals.

Without receivers this costs nothing. If a receiver of :mod:`django_jobqueue.signals` raises, Django logs it and calls
the other receivers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import connections, transaction
from psycopg.sql import Literal

from ..conf import get_settings
from ..log_texts import error_line, error_text
from ..models import Job
from ..policies import ORDERED
from ..process_memory import ProcessMemory
from ..signals import job_sent, key_blocked, key_released
from ..states import DEAD, ELIGIBLE
from .databases import rows
from .sql.send import CHANNEL, NOTIFICATION_QUEUE_USAGE, NOTIFY

if TYPE_CHECKING:
    from .transitions import Change

logger = logging.getLogger("django_jobqueue")

Hear = Callable[[str, str, list[UUID]], None]
Told = Callable[[], None]


def after_commit(using: str, work: Callable[[], object]) -> bool:
    """Run ``work`` when the transaction is committed; return whether that is possible."""
    connection = connections[using]
    if not connection.get_autocommit() and not connection.in_atomic_block:
        return False  # the caller manages the transaction by hand, and Django cannot tell when it commits
    transaction.on_commit(work, using=using, robust=True)
    return True


def sent(using: str, queue: str, ids: list[UUID]) -> None:
    """Jobs were stored."""
    wake(using, [queue])
    for hear in before_commit.listeners:
        hear(using, queue, ids)
    if job_sent.receivers and ids:
        after_commit(using, partial(job_sent.send_robust, Job, ids=ids, queue=queue, using=using))


def moved(using: str, jobs: list[Job], changes: Mapping[UUID, Change]) -> None:
    """Jobs changed their states: attempts have ended, keys may be blocked or released, and some jobs wait again."""
    if key_blocked.receivers or key_released.receivers:
        _keys_moved(using, jobs, changes)
    ended(using, changes)
    wake(using, {job.queue_id for job in jobs if changes[job.pk].state in ELIGIBLE and not changes[job.pk].delay})


def _keys_moved(using: str, jobs: Iterable[Job], changes: Mapping[UUID, Change]) -> None:
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
    """An operator deleted jobs; those that blocked their keys no longer do."""
    if key_released.receivers:
        dead = [job for job in jobs if job.policy == ORDERED and job.state in DEAD]
        keys_released(using, [(job.queue_id, job.singleton_key) for job in dead])


def keys_released(using: str, keys: Iterable[tuple[str, str]]) -> None:
    """An operator released these keys, each given with its queue."""
    released = list(keys)
    if released and key_released.receivers:
        after_commit(using, partial(_tell_released, released))


def _tell_blocked(keys: Iterable[tuple[str, str, UUID]]) -> None:
    for queue, key, id in keys:
        key_blocked.send_robust(Job, queue=queue, key=key, id=id)


def _tell_released(keys: Iterable[tuple[str, str]]) -> None:
    for queue, key in keys:
        key_released.send_robust(Job, queue=queue, key=key)


# ------------------------------------------------------------------------------------------------------ the testing kit


class SendListeners:
    """Callables that are told of sends before the commit: only the testing kit, inside its ``with`` statement."""

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


# -------------------------------------------------------------------------------------------------------------- streams


class Holders:
    """The streams of this process by the jobs they hold; a job is kept from ``hold`` until ``let_go``."""

    def __init__(self) -> None:
        self._by_job: dict[UUID, Told] = {}

    def hold(self, ids: Iterable[UUID], told: Told) -> None:
        """Call ``told`` from now on when one of these jobs ends."""
        self._by_job.update(dict.fromkeys(ids, told))

    def let_go(self, ids: Iterable[UUID], told: Told) -> None:
        """Stop calling ``told`` for these jobs, unless another stream holds them by now."""
        for id in ids:
            if self._by_job.get(id) == told:  # equal, not identical: a bound method is a new object at each access
                del self._by_job[id]

    def ended(self, using: str, ids: Iterable[UUID]) -> None:
        """Attempts of these jobs have ended: tell their holders after the commit. Costs nothing without holders."""
        if self._by_job and (holders := {told for id in ids if (told := self._by_job.get(id)) is not None}):
            after_commit(using, partial(_tell, holders))


def _tell(holders: set[Told]) -> None:
    for told in holders:
        told()


_holders = Holders()
hold, let_go, ended = _holders.hold, _holders.let_go, _holders.ended


# -------------------------------------------------------------------------------------------------------------- workers


class _WakeUps:
    """The queues that one transaction will wake, each once."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[set[str]]] = {}
        self.sent: set[str] = set()

    def covers(self, queue: str, savepoints: set[str]) -> bool:
        """Whether the queue has a commit hook that is rolled back only together with the current savepoint."""
        return any(hook <= savepoints for hook in self.hooks.get(queue, ()))


class _WakeUp:
    """A notification that is sent after the commit."""

    def __init__(self, using: str, queue: str, shared: _WakeUps) -> None:
        self.using, self.queue, self.shared = using, queue, shared

    def __call__(self) -> None:
        if self.queue in self.shared.sent:
            return
        self.shared.sent.add(self.queue)
        try:
            with connections[self.using].cursor() as cursor:
                cursor.execute(NOTIFY.format(channel=CHANNEL, queue=Literal(self.queue).as_string()))
        except Exception as error:  # the jobs are stored and polling finds them: a lost notification only costs time
            _say_unnotified(self.using, self.queue, error)


_SAY_EVERY_SECONDS = 10.0


class LastWarning(ProcessMemory):
    """When this process last said that it could not notify workers."""

    def __init__(self) -> None:
        super().__init__()
        self.at = float("-inf")  # monotonic time

    def forget(self) -> None:
        self.at = float("-inf")


_last_warning = LastWarning()


def _say_unnotified(using: str, queue: str, error: Exception) -> None:
    """Log it, but not each time; and if the server's notification queue is full, make the server check it again."""
    if time.monotonic() - _last_warning.at < _SAY_EVERY_SECONDS:
        return
    _last_warning.at = time.monotonic()
    logger.warning(
        "could not notify workers: queue %s: %s; they find its jobs when they poll",
        queue,
        error_line(error),
        extra={"queue": queue, "error": error_text(error)},
    )
    with suppress(Exception):
        rows(using, NOTIFICATION_QUEUE_USAGE)


def wake(using: str, queues: Iterable[str]) -> None:
    """Notify workers, once and after the commit, that these queues have jobs to fetch.

    Never inside the caller's transaction, because a commit with NOTIFY waits for all other commits with NOTIFY.
    """
    if not get_settings().NOTIFY:
        return
    connection = connections[using]
    shared = next((f.shared for _, f, *_ in reversed(connection.run_on_commit) if isinstance(f, _WakeUp)), _WakeUps())
    savepoints = set(connection.savepoint_ids)
    for queue in queues:
        if not shared.covers(queue, savepoints) and after_commit(using, _WakeUp(using, queue, shared)):
            shared.hooks.setdefault(queue, []).append(savepoints)
