"""Which queue a child fetches from next, and when."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from .. import handlers
from ..models import Job, Queue
from ..policies import LANED, QueuePolicy
from ..services import Bookmark
from ..signals import job_finished, job_started
from .options import WorkerOptions
from .outcomes import Result

REFRESH_SECONDS = 10.0  # how often the list of queues is read again
EMPTY_SECONDS = 0.005  # an empty queue is not read again sooner, however many notifications come


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """A queue that a child fetches from, and what decides how it fetches."""

    name: str
    has_lanes: bool
    by_group: bool  # jobs are read by group
    is_async: bool  # all its handlers are asynchronous
    takes_context: bool  # a handler takes the context, and so sees the whole job


class Poller:
    """The queues of a child in the order of their turns, and when to read each."""

    def __init__(
        self,
        options: WorkerOptions,
        poll_seconds: float,
        wake: threading.Event,
        *,
        one_handler: bool,  # whether one handler runs all jobs, even those that name another
        always_whole: bool,  # whether jobs are always claimed with all their columns
    ) -> None:
        self.queues: dict[str, ServedQueue] = {}
        self.look_at: dict[str, float] = {}  # when to read each queue
        self.bookmarks: dict[str, Bookmark] = {}  # of queues that returned as many jobs as requested
        self.notified: set[str] = set()  # queues, or "" for all; filled by the listener's thread
        self._options, self._poll_seconds, self._wake = options, poll_seconds, wake
        self._one_handler, self._always_whole = one_handler, always_whole
        self._turns: deque[str] = deque()
        self._empty_at: dict[str, float] = {}  # when a queue was found empty
        self._refreshed_at = float("-inf")

    # ----------------------------------------------------------------------------------------------- the list of queues

    def refresh_if_old(self, now: float) -> None:
        if now - self._refreshed_at > REFRESH_SECONDS:
            self._refresh()
            self._refreshed_at = now

    def refresh_soon(self) -> None:
        """Read the list of queues again at the next turn, because a queue was deleted."""
        self._refreshed_at = float("-inf")

    def _refresh(self) -> None:
        """Read the list of queues: those named in the options, or all that have a handler."""
        using = self._options.using
        policies = dict(Queue.objects.using(using).order_by("name").values_list("name", "policy"))
        known = handlers.all_handlers()
        served = handlers.served(known)
        asked = set(self._options.queues) or served
        plain = handlers.served(handler for handler in known if not handler.is_async)
        asynchronous = set() if self._one_handler else served - plain
        with_context = handlers.served(handler for handler in known if handler.takes_context)
        self.queues = {
            name: ServedQueue(
                name,
                has_lanes=policy in LANED,
                by_group=bool(self._options.grouping) and policy == QueuePolicy.STANDARD,
                is_async=name in asynchronous,
                takes_context=name in with_context,
            )
            for name, policy in policies.items()
            if name in asked
        }
        self.look_at = {name: self.look_at.get(name, 0.0) for name in self.queues}
        if set(self._turns) != set(self.queues):
            self._turns = deque(self.queues)

    def needs_whole(self, queue: str) -> bool:
        """Whether code outside the worker sees the jobs of this queue, and may read any of their columns."""
        if self._always_whole or job_started.receivers or job_finished.receivers:
            return True
        served = self.queues.get(queue)
        return served is None or served.takes_context or served.by_group

    # ---------------------------------------------------------------------------------------------------- notifications

    def notify(self, queue: str) -> None:
        """Read this queue soon, or all queues if it is ``""``. Called from any thread."""
        if not queue or queue in self.look_at:
            self.notified.add(queue)
            self._wake.set()

    def notify_groups(self, batch: Iterable[Result]) -> None:
        """Read queues soon of whose groups a job has ended: the next job of the group can be fetched."""
        if self._options.grouping:
            for name in {job.queue_id for job, _, _ in batch}:
                queue = self.queues.get(name)
                if queue is not None and queue.by_group:
                    self.notify(name)

    def read_notifications(self) -> None:
        """Read the queues now for which notifications came."""
        while self.notified:
            queue = self.notified.pop()
            for name in [queue] if queue else list(self.look_at):
                if name in self.look_at:
                    self.look_at[name] = self._empty_at.get(name, 0.0) + EMPTY_SECONDS

    # ------------------------------------------------------------------------------------------------------------ turns

    def in_turn(self) -> list[ServedQueue]:
        return [self.queues[name] for name in self._turns]

    def is_first(self, queue: ServedQueue) -> bool:
        return queue.name == self._turns[0]

    def end_turn(self, queue: ServedQueue) -> None:
        """Move this queue behind the others."""
        self._turns.remove(queue.name)
        self._turns.append(queue.name)

    def look_at_all_now(self) -> None:
        self.look_at = dict.fromkeys(self.look_at, 0.0)
        self._empty_at.clear()  # otherwise a queue with a notification would be read a moment later

    def plan_next_look(self, queue: ServedQueue, jobs: list[Job], requested: int, now: float) -> None:
        """Read the queue again at once, or after ``POLL_SECONDS`` if it returned fewer jobs than requested.

        A queue with lanes may return fewer jobs and have more.
        """
        if queue.name not in self.queues:  # it was deleted meanwhile
            return
        if len(jobs) >= requested:
            self.bookmarks.setdefault(queue.name, Bookmark())
        else:
            self.bookmarks.pop(queue.name, None)  # it helps only while the queue is busy, and costs a query
        if jobs and (len(jobs) >= requested or jobs[0].policy in LANED or queue.by_group):
            self.look_at[queue.name] = 0.0
            return
        self.look_at[queue.name] = now + self._poll_seconds * random.uniform(0.9, 1.1)
        if not jobs:
            self._empty_at[queue.name] = now
