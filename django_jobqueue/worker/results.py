"""Writing down how jobs ended: many at once where that can be, and handing their lanes over."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .. import services
from ..engine.transactions import unless_locked
from ..engine.workers import report_progress, seconds_until
from ..exceptions import ClaimLost, InvalidTransition, JobNotFound, JobQueueError
from ..models import Job
from ..signals import job_finished
from ..states import JobState
from .outcomes import Completed, Ending, Failed, Late, Recorded, Result, Snoozed, Stopped, Untouched
from .sessions import DATABASE_ERRORS

if TYPE_CHECKING:
    from .child import Child

logger = logging.getLogger("django_jobqueue.worker")

LOCK_SECONDS = 0.05  # how long a result waits for somebody who has locked its job
_PLAIN = Failed("")[1:]  # a failure that says nothing of its own about retrying


def write_down(job: Job, ending: Ending, using: str) -> services.Failure | None:
    """Record how one attempt ended, by the verb that is for it; raises what that raises."""
    if isinstance(ending, Completed):
        services.complete(job, ending.output, using=using)
    elif isinstance(ending, Failed):
        when = ending.retry_after
        return services.fail(
            job,
            ending.error,
            retry_after=seconds_until(when, using=using) if isinstance(when, datetime) else when,
            for_good=ending.for_good,
            reason=ending.reason,
            using=using,
        )
    elif isinstance(ending, Stopped):
        services.stop(job, ending.text, using=using)
    elif isinstance(ending, Snoozed):
        services.give_back(job, ending.text, delay=ending.delay, using=using)
    return None


def tell_finished(job: Job, ending: Ending, seconds: float, failure: services.Failure | None) -> None:
    """Send the signal that an attempt has ended."""
    error = ending.error if isinstance(ending, Failed) else None
    name = "completed" if isinstance(ending, Recorded) else type(ending).__name__.lower()
    job_finished.send_robust(sender=Job, job=job, ending=name, seconds=seconds, error=error, failure=failure)


class Recorder:
    """What a child's handlers have ended with, and what became of that."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self._done = self._failed = 0
        self._first_at: float | None = None  # when the oldest result came that is not written down
        self._aside: dict[UUID, tuple[Job, Ending, float, float]] = {}  # ended jobs that somebody else has locked
        self._unsure: set[UUID] = set()  # jobs whose results may have been written, because only the answer was lost
        self._failures: dict[UUID, services.Failure] = {}  # to be told of

    def write_progress(self) -> None:
        """How far handlers say they have come."""
        if self.child.executor.reports:
            reports, self.child.executor.reports = self.child.executor.reports, {}
            report_progress(list(reports.values()), using=self.child.using)

    def finish(self, now: float) -> bool:
        """Write down what has ended, together with what ends in the next moment; whether anything was."""
        child, settings, results = self.child, self.child.settings, self.child.executor.results
        if not results:
            return False
        most = child.line.most_at_once(results[0][0].policy)
        if len(results) < min(len(child.held), settings.BATCH_SIZE, most) and not child.line.is_starving():
            self._first_at = self._first_at or now
            if now - self._first_at < settings.FINISH_SECONDS:
                return False
        self._first_at = None
        self.record([results.popleft() for _ in range(min(len(results), most))])
        return True

    def record(self, batch: list[Result]) -> None:
        try:
            self._record_batch(batch)
            if self._unsure:
                self._unsure.difference_update([job.id for job, _, _ in batch])
        except DATABASE_ERRORS:
            self._unsure.update(job.id for job, _, _ in batch)
            self.child.executor.results.extendleft(
                result for result in reversed(batch) if result[0].id in self.child.held
            )  # what was recorded before the connection broke is answered as lost, and harmless
            raise

    def _record_batch(self, batch: list[Result]) -> None:
        completed: list[tuple[Job, Any]] = []
        failed: list[tuple[Job, object]] = []
        others: list[Result] = []
        late: list[Job] = []
        self.write_progress()  # what was said last, too
        for job, ending, seconds in batch:
            if type(ending) is Completed:
                completed.append((job, ending.output))
            elif type(ending) is Failed and ending[1:] == _PLAIN:
                failed.append((job, ending.error))
            elif type(ending) is Late:
                late.append(job)
            else:
                others.append((job, ending, seconds))
        self.child.line.learn(batch)
        self._record_many(completed, failed)
        for job, ending, seconds in others:
            self._record_one(job, ending, seconds)
        if late:
            self.child.line.begin_late(late)
        self.child.line.ended(batch)
        for id in self._aside.keys() - self.child.held.keys():
            del self._aside[id]
        self._count(batch)

    def _record_many(self, completed: list[tuple[Job, Any]], failed: list[tuple[Job, object]]) -> None:
        if not completed and not failed:
            return
        child = self.child
        finished = services.finish_many(
            completed,
            failed,
            hand_over=self._may_take_more(),
            tags=child.options.tags,
            worker=child.name,
            incarnation=child.incarnation,
            lock_timeout=LOCK_SECONDS,
            whole=child.line.shows(completed[0][0].queue_id) if completed else True,
            using=child.using,
        )
        busy = set(finished.busy)
        for pairs, ending in ((completed, Completed), (failed, Failed)):
            for job, value in pairs:
                if busy and job.id in busy:
                    self._put_aside(job, ending(value))
                else:
                    self._let_go(job)
        self._say_lost(finished.lost)
        for failure in finished.failed:
            self._say_failed(failure)
        if finished.next:
            child.line.take(finished.next)

    def _say_lost(self, ids: list[UUID]) -> None:
        """But not of results that were written after all, when only the answer was lost."""
        lost = [str(id) for id in ids if id not in self._unsure]
        if lost:
            facts = {"worker": self.child.name, "job": lost[0], "jobs": lost[:20], "number": len(lost)}
            logger.warning("a claim was lost", extra=facts)

    def _let_go(self, job: Job) -> None:
        """No longer ours; unless that was an old claim, and we have got the job again since."""
        if self.child.held.get(job.id) is job:
            del self.child.held[job.id]

    def _put_aside(self, job: Job, ending: Ending) -> None:
        """A job that somebody else has locked is finished later, and keeps nobody waiting until then."""
        pause = min(2 * self._aside[job.id][2], 1.0) if job.id in self._aside else 0.05
        self._aside[job.id] = (job, ending, pause, time.monotonic() + pause)

    def take_up(self, now: float) -> None:
        """What was put aside and may be tried again."""
        for job, ending, _, at in list(self._aside.values()):
            if now >= at:
                self.child.executor.results.append((job, ending, 0.0))

    def unrecorded(self) -> int:
        """How many jobs have ended, and nobody knows yet."""
        return len(self.child.executor.results) + len(self._aside)

    def _may_take_more(self) -> bool:
        child = self.child
        if child.stopping or child.retired or child.line.is_careful():
            return False
        return not child.options.max_jobs or self.room_for_jobs() > 0

    def room_for_jobs(self) -> int:
        """How many more jobs ``--max-jobs`` lets it claim."""
        return self.child.options.max_jobs - self._done - self._failed - len(self.child.held)

    def _say_failed(self, failure: services.Failure) -> None:
        facts = {
            "worker": self.child.name,
            "job": str(failure.id),
            "state": failure.state,
            "retries": failure.retry_count,
        }
        logger.log(logging.WARNING if failure.will_retry else logging.ERROR, "a job failed", extra=facts)
        if job_finished.receivers:
            self._failures[failure.id] = failure

    def drop(self, jobs: Iterable[Job]) -> None:
        """Jobs whose claims were lost before they were begun."""
        lost = list(jobs)
        for job in lost:
            self._let_go(job)
        self._say_lost([job.id for job in lost])

    def return_one(self, job: Job, why: str) -> None:
        """Return a job that was not begun, uncharged."""
        self._record_one(job, Snoozed(why, 0.0), 0.0)

    def _record_one(self, job: Job, ending: Ending, seconds: float) -> None:
        """The rarer endings, each by its verb."""
        if isinstance(ending, Failed) and ending.disconnected_at is not None:
            if self.child.restarted_since(ending.disconnected_at - seconds):
                ending = Snoozed("The database server was restarted or replaced while it ran.", 0.0)
            else:
                ending = ending._replace(disconnected_at=None)
        if isinstance(ending, Recorded | Untouched):
            if ending == Recorded(lost=True):
                self._say_lost([job.id])
            self._let_go(job)
        elif unless_locked(self.child.using, partial(self._record_alone, job, ending), LOCK_SECONDS) is None:
            self._put_aside(job, ending)
        else:
            self._let_go(job)

    def _record_alone(self, job: Job, ending: Ending) -> bool:
        try:
            failure = write_down(job, ending, self.child.using)
            if failure is not None:
                self._say_failed(failure)
        except InvalidTransition as error:
            if error.state == JobState.CANCELLING:
                services.acknowledge_cancellation(job, was_executing=True, using=self.child.using)
            else:
                self._say_lost([job.id])
        except (ClaimLost, JobNotFound):
            self._say_lost([job.id])
        except JobQueueError as error:  # the ending makes no sense, but the job must have one
            services.fail(job, error, using=self.child.using)
        return True

    def count(self) -> None:
        """Where the supervisor sees it."""
        self.child.slots.count_jobs(self._done, self._failed, len(self.child.held))

    def _count(self, batch: list[Result]) -> None:
        is_told, aside, done, failed = bool(job_finished.receivers), self._aside, 0, 0
        for job, ending, seconds in batch:
            kind = type(ending)
            if kind is Untouched or kind is Late or (aside and self.child.held.get(job.id) is job):
                continue
            if kind is Failed:
                failed += 1
            else:
                done += 1
            if is_told:
                tell_finished(job, ending, seconds, self._failures.pop(job.id, None))
        self._done += done
        self._failed += failed
        self.child.asynchronous &= self.child.held.keys()
        self.count()
        if (
            self.child.options.max_jobs
            and self._done + self._failed >= self.child.options.max_jobs
            and not self.child.retired
        ):
            self.child.retire("it ran --max-jobs")
