"""The claims that a child holds: the object that its parts share, so that they need not know each other."""

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

LATE = 4  # a job that has waited a quarter of its time has its claim renewed before it begins


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The name and incarnation under which a process claims jobs, and the database it claims them in."""

    name: str
    incarnation: UUID
    using: str

    def number(self, worker: str) -> str:
        """The number of this child of its worker."""
        return self.name.removeprefix(worker).removeprefix("/") or "1"


class LockedOutcome(NamedTuple):
    """How an attempt ended; not yet recorded, because another transaction has locked its job."""

    job: Job
    ending: Ending
    seconds: float  # how long its handler ran
    pause: float  # seconds until the next try
    retry_at: float


def allot_time(job: Job, now: float) -> None:
    """Give a job its whole time from now on."""
    job.deadline, job.begin_by = now + job.expire_in_seconds, now + job.expire_in_seconds / LATE


class HeldClaims:
    """The jobs that a child has claimed and not finished, and counts of those it has. Used by its main thread only."""

    def __init__(self, identity: WorkerIdentity, slots: Slots, *, max_jobs: int = 0) -> None:
        self.identity = identity
        self.jobs: dict[UUID, Job] = {}
        self.asynchronous: set[UUID] = set()  # jobs that run in the event loop
        self.prefetched: list[Job] = []  # fetched ahead and not yet dispatched
        self.suspects: deque[Item] = deque()  # one more crash would fail them for good: they run alone
        self.alone: UUID | None = None  # the suspect that runs
        self.locked: dict[UUID, LockedOutcome] = {}  # ended, but locked by other transactions
        self.unconfirmed: set[UUID] = set()  # their results may be stored already: only the answer was lost
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
        """Log lost claims, except those of results that may be stored already."""
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
        """Give these jobs their whole time again. Returns those whose claims still stand and drops the others."""
        standing = renew(jobs, using=self.identity.using)
        now = time.monotonic()
        for job in standing:
            allot_time(job, now)
        kept = {job.id for job in standing}
        self.drop_lost(job for job in jobs if job.id not in kept)
        return standing

    def require_verification(self) -> None:
        """After a lost connection, renew each claim before its job begins, because the claim may be lost."""
        for job in self.jobs.values():
            job.begin_by = 0.0

    def give_back_unheld(self, why: str) -> int:
        """Return jobs to the queue that this process has claimed and does not hold, without using up a retry."""
        identity = self.identity
        return give_back_unheld(identity.name, identity.incarnation, self.jobs.values(), why, using=identity.using)

    def is_isolating(self) -> bool:
        """Whether a suspect runs alone or waits to do so; then no other job may begin."""
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
