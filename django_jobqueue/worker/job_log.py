"""The log of a child's jobs: a line for each job that ends, or a line for each second in which many end."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from ..log_texts import duration, job_label, one_line
from ..models import Job
from .outcomes import Completed, Ending, Recorded, Snoozed, Stopped
from .slots import Slots
from .tally import Tally

logger = logging.getLogger("django_jobqueue.worker")

MOST_LINES = 50  # jobs per second of a worker that get a line each
WINDOW_SECONDS = 1.0


class JobLog:
    """Logs the jobs of a child that end without an error; those that fail are always logged, by the recorder.

    A busy child must not pay for its log, so the decision is made once for each batch of results.
    """

    def __init__(self, worker: str, processes: int, slots: Slots) -> None:
        self.tally = Tally()
        self._worker, self._slots = worker, slots
        self._most = max(1, MOST_LINES // processes)
        self._is_busy = False  # more jobs ended in the last window than may have a line
        self._began_at = time.monotonic()
        self._seen = 0  # jobs of this window
        self._has_unlisted = False  # whether some of them have no line
        self._before = Tally()  # at the beginning of this window

    def takes(self, number: int) -> bool:
        """Whether each of so many jobs that have ended gets a line."""
        if not logger.isEnabledFor(logging.INFO):
            return False
        self.sum_up(time.monotonic())
        self._seen += number
        if self._seen <= self._most and not self._is_busy:
            return True
        self._has_unlisted = True
        return False

    def sum_up(self, now: float, *, at_once: bool = False) -> None:
        """At the end of a second, log how many jobs ended in it if not each has a line."""
        seconds = now - self._began_at
        if seconds < WINDOW_SECONDS and not at_once:
            return
        if self._has_unlisted:
            ended = self.tally - self._before
            logger.info(
                "jobs ended: %s in %.1f s, child %s; above %d jobs per second they are not listed",
                ended,
                seconds,
                self._worker,
                self._most,
                extra={
                    "worker": self._worker,
                    "completed": ended.completed,
                    "failed": ended.failed,
                    "retried": ended.retried,
                    "cancelled": ended.stopped,
                    "snoozed": ended.snoozed,
                    "seconds": round(seconds, 3),
                },
            )
        self._is_busy = self._seen > self._most * seconds
        self._began_at, self._seen, self._has_unlisted = now, 0, False
        self._before = replace(self.tally)

    def publish(self) -> None:
        """Write the tally to the memory that the supervisor reads."""
        self._slots.tally = self.tally

    def add(self, job: Job, ending: Ending, seconds: float | None) -> None:
        """Count one of the rare endings, and list the job if ``seconds`` says how long it ran."""
        if isinstance(ending, Snoozed):
            self.tally.snoozed += 1
        elif isinstance(ending, Stopped):
            self.tally.stopped += 1
        elif isinstance(ending, Completed) or ending == Recorded():
            self.tally.completed += 1
        else:
            return
        if seconds is not None:
            self.list_job(job, ending, seconds)

    def list_job(self, job: Job, ending: Ending, seconds: float) -> None:
        """Log a job that has ended without an error."""
        label, attempt, took = job_label(job), _attempt_of(job), duration(seconds)
        delay = ending.delay if isinstance(ending, Snoozed) else None
        why = one_line(ending.text) if isinstance(ending, Snoozed | Stopped) else ""
        facts = {
            "worker": self._worker,
            "job": str(job.id),
            "seq": job.__dict__.get("seq"),
            "queue": job.queue_id,
            "handler": job.name,
            "key": job.singleton_key,
            "attempt": job.attempt,
            "seconds": round(seconds, 6),
            "retry_in_seconds": delay,
            "why": why,
        }
        if isinstance(ending, Snoozed):
            logger.info(
                "job snoozed: %s attempt %s in %s; next attempt in %g s", label, attempt, took, delay, extra=facts
            )
        elif isinstance(ending, Stopped):
            logger.info("job cancelled: %s attempt %s in %s: %s", label, attempt, took, why, extra=facts)
        else:
            logger.info("job completed: %s attempt %s in %s", label, attempt, took, extra=facts)


def _attempt_of(job: Job) -> str:
    """The number of the attempt, and of those that the job may have if the limit was read with it."""
    known = job.__dict__
    if (limit := known.get("retry_limit")) is None:
        return str(job.attempt)
    return f"{job.attempt}/{job.attempt + limit - job.retry_count}"
