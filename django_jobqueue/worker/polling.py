"""Which queue a child fetches from next, and when."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import filterfalse

from .. import handlers
from ..models import Job, Queue
from ..policies import LANED, QueuePolicy
from ..queue_order import QueueOrder
from ..services import Bookmark
from ..signals import job_finished, job_started
from .options import WorkerOptions
from .outcomes import Result
from .served_queues import queues_of_workers
from .turns import turns_of

REFRESH_SECONDS = 10.0  # how often the list of queues is read again
REST = 20  # after a look that passed over jobs and found none, pause for this many times its duration
EMPTY_SECONDS = 0.005  # an empty queue is not read again sooner, however many notifications come


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """A queue that a child fetches from, and what decides how it fetches."""

    name: str
    has_lanes: bool
    by_group: bool  # jobs are read by group
    is_async: bool  # all its handlers are asynchronous
    is_apart: bool  # it has threads of its own
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
        refreshed: Callable[[Iterable[str], Iterable[str]], None],  # called with the queues, see MissingHandlers
    ) -> None:
        self.queues: dict[str, ServedQueue] = {}
        self.look_at: dict[str, float] = {}  # when to read each queue
        self.bookmarks: dict[str, Bookmark] = {}  # of queues that returned as many jobs as requested
        self.notified: set[str] = set()  # queues, or "" for all; filled by the listener's thread
        self._options, self._poll_seconds, self._wake = options, poll_seconds, wake
        self._one_handler, self._always_whole = one_handler, always_whole
        self._refreshed = refreshed
        self._turns = turns_of(options)
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
        """Read the list of queues: those named in the options, or all that are declared and no dead-letter queues."""
        options = self._options
        policies = dict(Queue.objects.using(options.using).order_by("name").values_list("name", "policy"))
        known = handlers.all_handlers()
        served = handlers.served(known)
        asked = options.queues or queues_of_workers(using=options.using)
        plain = handlers.served(handler for handler in known if not handler.is_async)
        asynchronous = set() if self._one_handler else served - plain
        with_context = handlers.served(handler for handler in known if handler.takes_context)
        self.queues = {
            name: ServedQueue(
                name,
                has_lanes=policies[name] in LANED,
                by_group=bool(options.grouping) and policies[name] == QueuePolicy.STANDARD,
                is_async=name in asynchronous,
                is_apart=name in options.own,
                takes_context=name in with_context,
            )
            for name in dict.fromkeys(asked)
            if name in policies and name not in options.exclude
        }
        self.look_at = {name: self.look_at.get(name, 0.0) for name in self.queues}
        self._turns.serve(list(self.queues))
        # Nothing says that jobs without a name are for workers in a queue for which no handler is declared.
        has_own_code = bool(options.queues) or self._one_handler
        self._refreshed(self.queues, () if has_own_code else filterfalse(handlers.runs_unnamed, self.queues))

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
        return [self.queues[name] for name in self._turns.in_turn()]

    def may_repeat(self, queue: ServedQueue, now: float) -> bool:
        """Whether the next turn is that of this queue again, so that its next jobs may be fetched ahead."""
        return self._turns.is_next(queue.name, self._due(now))

    def end_turn(self, queue: ServedQueue) -> None:
        self._turns.end(queue.name)

    def may_hand_over(self, queues: Iterable[str]) -> bool:
        """Whether the lanes of these queues may go on, although jobs of other queues may wait."""
        if self._options.queue_order != QueueOrder.STRICT:
            return True  # a lane ends its turn after HAND_OVER_LIMIT
        due = self._due(time.monotonic())
        return not any(self._turns.goes_before(name, due) for name in set(queues))

    def _due(self, now: float) -> set[str]:
        """The queues to read now, because they may have jobs."""
        return {name for name, at in self.look_at.items() if at <= now}

    def look_at_all_now(self) -> None:
        self.look_at = dict.fromkeys(self.look_at, 0.0)
        self._empty_at.clear()  # otherwise a queue with a notification would be read a moment later

    def plan_next_look(
        self, queue: ServedQueue, jobs: list[Job], requested: int, now: float, *, has_skipped: bool = False
    ) -> None:
        """Read the queue again at once, or after ``POLL_SECONDS`` if it returned fewer jobs than requested.

        A queue with lanes may return fewer jobs and have more. A look that passed over jobs and found none may have
        taken long, so the next one waits for a multiple of that.
        """
        self._turns.count(queue.name, len(jobs))
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
        if not jobs and has_skipped:
            rested = time.monotonic() + REST * (time.monotonic() - now)
            self._empty_at[queue.name] = rested
            self.look_at[queue.name] = max(self.look_at[queue.name], rested)
