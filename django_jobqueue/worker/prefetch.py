"""Claiming jobs: from queues in turn, and ahead of time while the child is busy."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf

from .. import services
from ..conf import Settings
from ..exceptions import QueueNotFound
from ..models import Job
from ..queue_order import QueueOrder
from ..timings import LATE_SECONDS
from .capacity import Capacity
from .claims import HeldClaims
from .fetch_ahead import FetchAhead
from .options import WorkerOptions
from .polling import Poller, ServedQueue

logger = logging.getLogger("django_jobqueue.worker")

LONGEST_SECONDS = 1.0  # the longest pause between two reads of queues
AFTER_TROUBLE_SECONDS = 30.0  # the pause in fetching ahead after it failed: no connection or no thread may be free


class Prefetcher:
    """Claims as many jobs as the child has room for, and passes them to ``begin``, or groups to ``begin_groups``."""

    def __init__(
        self,
        claims: HeldClaims,
        poller: Poller,
        capacity: Capacity,
        options: WorkerOptions,
        settings: Settings,
        wake: threading.Event,
        *,
        begin: Callable[[Iterable[Job]], None],
        begin_groups: Callable[[Iterable[Job]], bool],
        skipped_in: Callable[[str], Sequence[str]],  # the names of handlers whose jobs it does not claim, by queue
    ) -> None:
        self.found_nothing = False  # whether all queues were empty when last read
        self._claims, self._poller, self._capacity = claims, poller, capacity
        self._options, self._batch_size = options, settings.BATCH_SIZE
        self._begin, self._begin_groups, self._skipped_in = begin, begin_groups, skipped_in
        self._ahead = FetchAhead(claims.identity.using, wake, claims.identity.name)
        self._ahead_of: ServedQueue | None = None  # the queue of the last fetch ahead
        self._ahead_at = 0.0  # when that fetch began
        self._not_ahead_before = 0.0

    def fill(self, now: float) -> bool:
        """Claim from the queues that may have jobs. Returns whether any job was claimed."""
        self.found_nothing = False
        if self._ahead.is_pending():
            return False
        came = self._begin_prefetched(now)
        self._poller.refresh_if_old(now)
        looked, queues = 0, self._poller.in_turn()
        for queue in queues:
            if self._ahead.requested or self._room(queue) < 1:
                continue
            self._poller.read_notifications()
            self._poller.end_turn(queue)
            looked += 1
            if self._poller.look_at[queue.name] <= now:
                came = self._claim(queue, now) or came
                while self._goes_on(queue, now) and self._claim(queue, now):
                    pass
        self.found_nothing = looked == len(queues) and not (came or self._poller.notified or self._ahead.requested)
        return came

    def _goes_on(self, queue: ServedQueue, now: float) -> bool:
        """Whether this queue is read again before the later ones: in strict order, while it may have jobs."""
        return (
            self._options.queue_order == QueueOrder.STRICT
            and not self._ahead.requested
            and self._poller.look_at.get(queue.name, inf) <= now
            and self._room(queue) > 0
        )

    def is_empty(self, now: float) -> bool:
        """Whether all queues are empty. Reads each: a job that failed a moment ago may wait for its next attempt."""
        self._poller.look_at_all_now()
        return not self.fill(now) and not self._ahead.requested

    def seconds_until_next_look(self) -> float:
        if self._ahead.is_pending():
            return LONGEST_SECONDS  # the end of the fetch wakes the child
        if self._claims.prefetched:
            return 0.0
        now, look_at = time.monotonic(), self._poller.look_at
        due = [look_at[name] for name, queue in self._poller.queues.items() if self._room(queue) > 0]
        return max(0.0, min([*due, now + LONGEST_SECONDS]) - now)

    def _room(self, queue: ServedQueue) -> int:
        return self._capacity.room(queue, self._ahead.requested)

    def _claim(self, queue: ServedQueue, now: float) -> bool:
        """Fetch from a queue, now or ahead. Returns whether jobs were claimed now."""
        room = self._room(queue)
        if self._fetches_ahead(queue, room, now):
            return False
        began, has_skipped = time.monotonic(), bool(self._skipped_in(queue.name))
        jobs = self._fetch(queue, room)
        self._poller.plan_next_look(queue, jobs, room, began if has_skipped else now, has_skipped=has_skipped)
        if not queue.by_group:
            self._begin(jobs)
        elif not self._begin_groups(jobs):
            self.give_back((), "it must not run with the others of its group")
        return bool(jobs)

    def _fetch(self, queue: ServedQueue, room: int) -> list[Job]:
        identity = self._claims.identity
        try:
            return services.fetch(
                queue.name,
                min(room, self._batch_size),
                tags=self._options.tags,
                grouping=self._options.grouping if queue.by_group else None,
                worker=identity.name,
                incarnation=identity.incarnation,
                bookmark=self._poller.bookmarks.get(queue.name),
                whole=self._poller.needs_whole(queue.name),
                skip_names=self._skipped_in(queue.name),
                using=identity.using,
            )
        except QueueNotFound:
            logger.warning(
                "queue was deleted: %s; child %s no longer reads it",
                queue.name,
                identity.name,
                extra={"worker": identity.name, "queue": queue.name},
            )
            self._poller.refresh_soon()
            return []

    # --------------------------------------------------------------------------------------------------- fetching ahead

    def _fetches_ahead(self, queue: ServedQueue, room: int, now: float) -> bool:
        """Fetch ahead if the last fetch returned as many jobs as requested: otherwise it would gain nothing."""
        if self._options.max_jobs or queue.by_group or queue.is_apart or queue.name not in self._poller.bookmarks:
            return False
        if room < self._batch_size // 2 or now < self._not_ahead_before:
            return False
        try:
            self._ahead.request(partial(self._fetch, queue, room), room)
        except RuntimeError:
            self._not_ahead_before = now + AFTER_TROUBLE_SECONDS
            return False
        self._ahead_of, self._ahead_at = queue, now
        return True

    def settle(self) -> None:
        """Wait for the running fetch, so that all claims are known. Its jobs begin in the next iteration."""
        requested = self._ahead.requested
        if not requested:
            return
        try:
            jobs = self._claims.prefetched = self._ahead.result()
        except Exception:
            self._not_ahead_before = time.monotonic() + AFTER_TROUBLE_SECONDS
            raise
        self._claims.jobs.update((job.id, job) for job in jobs)
        if self._ahead_of is not None:
            self._poller.plan_next_look(self._ahead_of, jobs, requested, time.monotonic())

    def _begin_prefetched(self, now: float) -> bool:
        self.settle()
        jobs = self._claims.prefetched
        if not jobs:
            return False
        if now - self._ahead_at > LATE_SECONDS:  # they may have waited while a suspect ran alone
            jobs = self._claims.renew(jobs)
        self._claims.prefetched = []  # only now, so that they stay here if the database is away
        self._fetch_more_ahead(now)
        self._begin(jobs)
        return True

    def _fetch_more_ahead(self, now: float) -> None:
        """Request the next batch before this batch begins, so that the server works meanwhile."""
        queue = self._ahead_of
        if queue is None or queue.name not in self._poller.queues:  # the queue was deleted meanwhile
            return
        if self._poller.may_repeat(queue, now):
            self._fetches_ahead(queue, self._room(queue), now)

    def verify_prefetched(self) -> None:
        """After a lost connection: renew the claims of jobs that were fetched ahead before they begin."""
        self._ahead_at = float("-inf")

    # --------------------------------------------------------------------------------------------------- returning jobs

    def give_back(self, jobs: Iterable[Job], why: str) -> None:
        """Return these jobs to the queue, and all that are claimed and not held, without using up a retry."""
        for job in jobs:
            self._claims.jobs.pop(job.id, None)
        self.settle()
        self._claims.give_back_unheld(why)

    def close(self) -> None:
        self._ahead.close()
