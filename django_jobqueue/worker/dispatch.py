"""Passing claimed jobs to the executor, and withdrawing jobs that it does not begin."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from .. import handlers
from ..conf import Settings
from ..engine.workers import load_whole
from ..handlers import Handler
from ..log_texts import job_label, one_line
from ..models import Job
from ..states import FailureReason
from .claims import LATE, HeldClaims, allot_time
from .event_loop import Item
from .executor import Executor
from .missing_handlers import MissingHandlers
from .outcomes import Failed
from .pace import HandlerPace
from .sessions import DATABASE_ERRORS

logger = logging.getLogger("django_jobqueue.worker")

STALE_SECONDS = 1.0  # claimed jobs that have not begun after that time are returned to the queue
SUSPECT_SECONDS = 5.0  # a job that waits longer to run alone is returned, perhaps to another worker


class Dispatcher:
    """Begins the jobs of a child: with their handlers, the jobs of a group in order, and suspects alone.

    A suspect is a job that would fail for good with one more crash of its process.
    """

    def __init__(
        self,
        claims: HeldClaims,
        executor: Executor,
        pace: HandlerPace,
        settings: Settings,
        handler: Handler[..., Any, Any] | None,
        missing: MissingHandlers,
    ) -> None:
        self.handler = handler  # runs all jobs, even those that name another handler
        self._missing = missing
        self._claims, self._executor, self._pace = claims, executor, pace
        self._suspicious = max(1, settings.CRASH_LIMIT - 1)  # a job with so many crashes runs alone
        self._handlers: dict[tuple[str, str], Handler[..., Any, Any]] = {}  # by queue and name
        self._waits_since: tuple[int, float] | None = None  # the number of handlers begun until then, and that moment

    def begin(self, jobs: Iterable[Job]) -> None:
        """Pass claimed jobs to the executor."""
        now = time.monotonic()
        asynchronous: list[Item] = []
        plain: list[Item] = []
        bare: list[Job] = []
        unhandled: list[Job] = []
        held, known, suspicious = self._claims.jobs, self._handlers, self._suspicious
        for job in jobs:
            handler = known.get((job.queue_id, job.name))
            if handler is None:
                handler = self._find(job)
                if handler is None:
                    unhandled.append(job)
                    continue
            held[job.id] = job
            seconds = job.expire_in_seconds
            job.deadline, job.begin_by = now + seconds, now + seconds / LATE
            if handler.takes_context and "tags" not in job.__dict__:
                bare.append(job)
            if job.crashes >= suspicious:
                self._claims.suspects.append((job, handler))
            elif handler.is_async:
                asynchronous.append((job, handler))
            else:
                plain.append((job, handler))
        if bare:  # their handler belongs to another queue, so the fetch did not know that it reads all columns
            try:
                load_whole(bare, using=self._claims.identity.using)
            except DATABASE_ERRORS:
                for job, _ in [*plain, *asynchronous]:  # held and never begun, they would wait until they expire
                    del held[job.id]
                raise
        self._executor.begin(plain, self._pace.chunk_size())
        self._claims.publish_counts()
        if asynchronous:
            self._claims.asynchronous.update(job.id for job, _ in asynchronous)
            self._executor.start_async(asynchronous)
        self._return_unhandled(unhandled)

    def begin_groups(self, jobs: Iterable[Job]) -> bool:
        """Pass each group to the executor as a unit. Returns whether all jobs could begin.

        A job that cannot run with the others of its group is not held, nor are the jobs behind it: the caller returns
        them to the queue.
        """
        now = time.monotonic()
        groups: dict[str, list[Item]] = {}
        cut: set[str] = set()
        unhandled: list[Job] = []
        for job in jobs:
            group = groups.setdefault(job.group_key, [])
            if job.group_key in cut:
                continue
            handler = self._handlers.get((job.queue_id, job.name)) or self._find(job)
            alone = job.crashes >= self._suspicious
            if handler is None or (group and (alone or handler.is_async != group[0][1].is_async)):
                cut.add(job.group_key)
                if handler is None:
                    unhandled.append(job)
                continue
            self._claims.jobs[job.id] = job
            allot_time(job, now)
            if alone:
                self._claims.suspects.append((job, handler))
                cut.add(job.group_key)
            else:
                group.append((job, handler))
        for group in filter(None, groups.values()):
            if group[0][1].is_async:
                self._claims.asynchronous.update(job.id for job, _ in group)
            self._executor.begin_group(group)
        self._claims.publish_counts()
        self._return_unhandled(unhandled)
        return not cut

    def begin_late(self, jobs: list[Job]) -> None:
        """Verify the claims of these jobs, and begin those whose claims still stand."""
        self.begin(self._claims.renew(jobs))

    def begin_suspect(self) -> bool:
        """Begin the next suspect if nothing else runs. Returns whether the list of suspects changed.

        Before a job fails for good because of crashes, it runs alone: then it is known whether it caused them. It does
        not run alone after its first crash, or all jobs of a machine that went down would run one by one.
        """
        claims = self._claims
        if claims.alone is not None or len(claims.jobs) > len(claims.suspects) + len(claims.prefetched):
            return False
        job, handler = claims.suspects[0]
        stands = bool(claims.renew([job]))
        claims.suspects.popleft()  # only now, so that it stays in the list if the database is away
        if not stands:
            return True
        claims.alone = job.id
        if handler.is_async:
            self._executor.start_async([(job, handler)])
        else:
            self._executor.begin([(job, handler)], 1)
        return True

    def _find(self, job: Job) -> Handler[..., Any, Any] | None:
        handler = self.handler or handlers.find(job.queue_id, job.name)
        if handler is not None:
            self._handlers[job.queue_id, job.name] = handler
        return handler

    def _return_unhandled(self, jobs: list[Job]) -> None:
        """Return jobs to the queue whose handler is missing. A job that has waited for it long enough fails for good.

        They are not held: if the database is away, they return when the claims are verified.
        """
        for job, text in self._missing.give_back(jobs) if jobs else ():
            worker = self._claims.identity.name
            facts = {"worker": worker, "job": str(job.id), "queue": job.queue_id, "handler": job.name}
            logger.error("no handler: %s: %s", job_label(job), one_line(text), extra=facts)
            self._claims.jobs[job.id] = job
            self._executor.results.append((job, Failed(text, for_good=True, reason=FailureReason.NO_HANDLER), 0.0))

    # ----------------------------------------------------------------------------- withdrawing jobs that have not begun

    def withdraw(self) -> list[Job]:
        """Withdraw all jobs that are held and have not begun; the executor will not begin them."""
        claims = self._claims
        items = [*claims.suspects, *self._executor.withdraw()]
        jobs = [*claims.prefetched, *(job for job, _ in items)]
        claims.suspects.clear()
        claims.prefetched = []
        return jobs

    def withdraw_waiting(self, now: float) -> list[Job]:
        """Withdraw jobs that wait behind a slow job: suspects, and jobs of a group."""
        waited = [item for item in self._claims.suspects if now > _suspect_until(item[0])]
        for item in waited:
            self._claims.suspects.remove(item)
        return [job for job, _ in [*waited, *self._executor.withdraw_behind_slow(now, STALE_SECONDS)]]

    def is_stalled(self, now: float) -> bool:
        """Whether jobs wait and none has begun for a while, because running handlers take longer than earlier ones."""
        if self._executor.ready.empty():
            self._waits_since = None
            return False
        began = self._executor.began
        if self._waits_since is None or began != self._waits_since[0]:
            self._waits_since = (began, now)  # a handler has begun since the last call
        if now - self._waits_since[1] < STALE_SECONDS:
            return False
        self._pace.slow_down(STALE_SECONDS)
        return True


def _suspect_until(job: Job) -> float:
    """Until when a job may wait to run alone: its deadline in the database comes nearer meanwhile."""
    claimed_at = job.deadline - job.expire_in_seconds
    return min(job.begin_by, claimed_at + SUSPECT_SECONDS)
