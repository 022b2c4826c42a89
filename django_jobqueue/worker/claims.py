"""The claims a child holds: the one object that its parts share, so that they need not know each other."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ..engine.workers import give_back_unheld, renew
from ..log_texts import job_label
from ..models import Job
from .event_loop import Item
from .outcomes import Ending
from .slots import Slots

logger = logging.getLogger("django_jobqueue.worker")

LATE = 4  # a job that has waited this part of its time is given its whole time again before it begins


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The name and incarnation under which a process claims jobs, and the database it claims them in."""

    name: str
    incarnation: UUID
    using: str


class LockedResult(NamedTuple):
    """A result that could not be recorded, because another transaction has locked its job."""

    job: Job
    ending: Ending
    pause: float  # in seconds, until the next try
    retry_at: float


def allot_time(job: Job, now: float) -> None:
    """Let the whole time of a job start now."""
    job.deadline, job.begin_by = now + job.expire_in_seconds, now + job.expire_in_seconds / LATE


class HeldClaims:
    """The jobs a child has claimed and not finished, and how many it has finished. Used by its main thread only."""

    def __init__(self, identity: WorkerIdentity, slots: Slots, *, max_jobs: int = 0) -> None:
        self.identity = identity
        self.jobs: dict[UUID, Job] = {}
        self.asynchronous: set[UUID] = set()  # those that run in the event loop
        self.prefetched: list[Job] = []  # those that were fetched ahead and are not dispatched
        self.suspects: deque[Item] = deque()  # those that one more crash would fail for good: they run alone
        self.alone: UUID | None = None  # the suspect that runs
        self.locked: dict[UUID, LockedResult] = {}  # those that have ended, and whose rows others have locked
        self.unconfirmed: set[UUID] = set()  # results that may have been written, because only the answer was lost
        self.is_closed = False  # no more jobs are claimed
        self.done = self.failed = 0
        self._slots, self._max_jobs = slots, max_jobs

    def release(self, job: Job) -> None:
        """Forget a claim that has ended, unless the child has claimed the same job again since."""
        if self.jobs.get(job.id) is job:
            del self.jobs[job.id]

    def drop_lost(self, jobs: Iterable[Job]) -> None:
        """Forget claims that were lost before their jobs began."""
        lost = list(jobs)
        for job in lost:
            self.release(job)
        self.log_lost(lost)

    def log_lost(self, jobs: list[Job]) -> None:
        """Report lost claims, except for results that were written and only their answer was lost."""
        lost = [job for job in jobs if job.id not in self.unconfirmed]
        if lost:
            ids = [str(job.id) for job in lost]
            logger.warning(
                "claim lost: worker %s, claims %d, the first %s; what these attempts did is not recorded",
                self.identity.name,
                len(lost),
                job_label(lost[0]),
                extra={
                    "worker": self.identity.name,
                    "job": ids[0],
                    "queue": lost[0].queue_id,
                    "jobs": ids[:20],
                    "number": len(ids),
                },
            )

    def renew(self, jobs: list[Job]) -> list[Job]:
        """Give these jobs their whole time again; returns those whose claims still stand and drops the others."""
        standing = renew(jobs, using=self.identity.using)
        now = time.monotonic()
        for job in standing:
            allot_time(job, now)
        self.drop_lost(job for job in jobs if job not in standing)
        return standing

    def require_verification(self) -> None:
        """After a lost connection: no job begins before its claim was renewed, because it may be lost."""
        for job in self.jobs.values():
            job.begin_by = 0.0

    def give_back_unheld(self, why: str) -> int:
        """Return to the queue, uncharged, what the database has as claimed by this process and is not held here."""
        identity = self.identity
        return give_back_unheld(identity.name, identity.incarnation, self.jobs.values(), why, using=identity.using)

    def is_isolating(self) -> bool:
        """Whether a suspect runs or waits to run alone, so that nothing else may begin."""
        if self.alone is not None and self.alone not in self.jobs:
            self.alone = None
        return self.alone is not None or bool(self.suspects)

    def remaining(self) -> int:
        """How many more jobs ``--max-jobs`` lets the child claim."""
        return self._max_jobs - self.done - self.failed - len(self.jobs)

    def may_claim_more(self) -> bool:
        if self.is_closed or self.is_isolating():
            return False
        return not self._max_jobs or self.remaining() > 0

    def is_used_up(self) -> bool:
        """Whether the child has run as many jobs as ``--max-jobs`` allows."""
        return bool(self._max_jobs) and self.done + self.failed >= self._max_jobs

    def publish_counts(self) -> None:
        """Write the numbers of jobs to the memory that the supervisor reads."""
        self._slots.count_jobs(self.done, self.failed, len(self.jobs))
