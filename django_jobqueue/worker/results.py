"""Recording how attempts ended, many in one statement where possible, and handing their lanes over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from .. import services
from ..conf import Settings
from ..engine.lanes import MOST_KEYS
from ..engine.transactions import unless_locked
from ..engine.workers import report_progress, seconds_until
from ..exceptions import ClaimLost, InvalidTransition, JobNotFound, JobQueueError
from ..log_texts import error_line, job_label
from ..models import Job
from ..policies import LANED, ORDERED
from ..services.finish_many import Finished
from ..signals import job_finished
from ..states import DEAD, JobState
from .claims import HeldClaims, LockedOutcome
from .executor import Executor
from .job_log import JobLog
from .outcomes import Completed, Ending, Failed, Late, NotBegun, Recorded, Result, Snoozed, Stopped
from .pace import HandlerPace
from .sessions import DATABASE_ERRORS

logger = logging.getLogger("django_jobqueue.worker")

LOCK_SECONDS = 0.05  # how long to wait for another transaction that has locked the job of a result
_COMPLETED = Completed(None)
_PLAIN = Failed("")[1:]  # the fields of a failure that leave its retry to the job


def record_ending(job: Job, ending: Ending, using: str) -> services.Failure | None:
    """Record how an attempt ended. Raises what the verb for that ending raises."""
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


def send_finished(job: Job, ending: Ending, seconds: float, failure: services.Failure | None) -> None:
    """Send the signal that an attempt has ended."""
    error = ending.error if isinstance(ending, Failed) else None
    name = "completed" if isinstance(ending, Recorded) else type(ending).__name__.lower()
    job_finished.send_robust(sender=Job, job=job, ending=name, seconds=seconds, error=error, failure=failure)


def _attempt_of(job: Job, failure: services.Failure) -> str:
    """The number of the attempt and of those that the job may have; a snoozed attempt does not use up a retry."""
    if failure.retry_limit is None:
        return f"{job.attempt} (no limit)"
    return f"{job.attempt}/{job.attempt + failure.retry_limit - failure.retry_count + failure.will_retry}"


def _aftermath(job: Job, failure: services.Failure) -> str:
    if job.policy != ORDERED:
        return "no attempts are left"
    if failure.state in DEAD:
        return "its key is blocked until an operator retries or skips the job"
    return "its queue skips it and its key goes on"


class Recorder:
    """Records the results of a child's executor.

    ``begin`` is called with jobs that are handed over, ``begin_late`` with jobs whose claims must be verified first,
    and ``notify_groups`` with results that were recorded. ``needs_whole`` says whether jobs of a queue are handed over
    with all their columns, ``may_hand_over`` whether lanes of these queues may go on, ``skipped`` which handlers' jobs
    are not handed over, ``restarted_since`` whether the server was started or replaced since then. Queues in ``own``
    have threads of their own.
    """

    def __init__(
        self,
        claims: HeldClaims,
        executor: Executor,
        pace: HandlerPace,
        settings: Settings,
        tags: tuple[str, ...],
        *,
        begin: Callable[[Iterable[Job]], None],
        begin_late: Callable[[list[Job]], None],
        notify_groups: Callable[[Iterable[Result]], None],
        needs_whole: Callable[[str], bool],
        may_hand_over: Callable[[Iterable[str]], bool],
        skipped: Callable[[], list[str]],
        own: Collection[str],
        restarted_since: Callable[[float], bool],
        log: JobLog,
    ) -> None:
        self._claims, self._executor, self._pace, self._log = claims, executor, pace, log
        self._settings, self._tags, self._using = settings, tags, claims.identity.using
        self._begin, self._begin_late, self._notify_groups = begin, begin_late, notify_groups
        self._needs_whole, self._restarted_since = needs_whole, restarted_since
        self._may_hand_over, self._skipped, self._own = may_hand_over, skipped, own
        self._oldest_at: float | None = None  # when the oldest result came that is not yet recorded
        self._failures: dict[UUID, services.Failure] = {}  # for the signal
        self._batch: list[Result] = []
        self._is_listed = False  # whether each job of the batch gets a line in the log

    def write_progress(self) -> None:
        """Store the progress that handlers reported."""
        if self._executor.reports:
            reports, self._executor.reports = self._executor.reports, {}
            report_progress(list(reports.values()), using=self._using)

    def record_due(self, now: float) -> bool:
        """Record results, together with those of the next moment. Returns whether any was recorded."""
        results = self._executor.results
        if not results:
            return False
        most = self._most_at_once(results[0][0].policy)
        enough = min(len(self._claims.jobs), self._settings.BATCH_SIZE, most)
        if len(results) < enough and not self._executor.ready.empty():  # otherwise threads are idle: do not wait
            self._oldest_at = self._oldest_at or now
            if now - self._oldest_at < self._settings.FINISH_SECONDS:
                return False
        self._oldest_at = None
        self.record([results.popleft() for _ in range(min(len(results), most))])
        return True

    def record_all(self) -> None:
        results = self._executor.results
        while results:
            self.record([results.popleft() for _ in range(len(results))])

    def _most_at_once(self, policy: str) -> int:
        """How many results to record together; with lanes not more than a transaction may lock."""
        most = self._settings.BATCH_SIZE
        return min(most, MOST_KEYS) if policy in LANED else 2 * most

    def record(self, batch: list[Result]) -> None:
        claims = self._claims
        try:
            self._record_batch(batch)
            if claims.unconfirmed:
                claims.unconfirmed.difference_update([job.id for job, _, _ in batch])
        except DATABASE_ERRORS:
            claims.unconfirmed.update(job.id for job, _, _ in batch)
            self._executor.results.extendleft(
                result for result in reversed(batch) if result[0].id in claims.jobs
            )  # results that were recorded before the connection broke are refused as lost claims, which is harmless
            raise

    def _record_batch(self, batch: list[Result]) -> None:
        completed: list[tuple[Job, Any]] = []
        failed: list[tuple[Job, object]] = []
        others: list[Result] = []
        late: list[Job] = []
        self._batch, self._is_listed = batch, self._log.takes(len(batch))
        self.write_progress()  # also the last reports of these jobs
        for job, ending, seconds in batch:
            if type(ending) is Completed:
                completed.append((job, ending.output))
            elif type(ending) is Failed and ending[1:] == _PLAIN:
                failed.append((job, ending.error))
            elif type(ending) is Late:
                late.append(job)
            else:
                others.append((job, ending, seconds))
        shared = [result for result in batch if result[0].queue_id not in self._own] if self._own else batch
        self._pace.update(shared, self._claims.asynchronous)
        self._record_many(completed, failed)
        for job, ending, seconds in others:
            if (recorded := self._record_one(job, ending, seconds)) is not None:
                self._log.add(job, recorded, seconds if self._is_listed else None)
        if late:
            self._resume_late(late)
        self._notify_groups(batch)
        for id in self._claims.locked.keys() - self._claims.jobs.keys():
            del self._claims.locked[id]
        self._count(batch)
        # Jobs that stay until the next batch reach an older generation of the garbage collector, which takes 6 % of the
        # processor time of Python.
        self._batch = []

    def _record_many(self, completed: list[tuple[Job, Any]], failed: list[tuple[Job, object]]) -> None:
        if not completed and not failed:
            return
        claims = self._claims
        finished = services.finish_many(
            completed,
            failed,
            hand_over=claims.may_claim_more() and self._may_hand_over(job.queue_id for job, _ in completed),
            tags=self._tags,
            worker=claims.identity.name,
            incarnation=claims.identity.incarnation,
            lock_timeout=LOCK_SECONDS,
            whole=self._needs_whole(completed[0][0].queue_id) if completed else True,
            skip_names=self._skipped(),
            using=self._using,
        )
        busy, release = set(finished.busy), claims.release
        seconds = self._seconds() if busy else {}
        for pairs, ending in ((completed, Completed), (failed, Failed)):
            for job, value in pairs:
                if busy and job.id in busy:
                    self._put_aside(job, ending(value), seconds[job.id])
                else:
                    release(job)
        self._log_completed(completed, finished)
        if finished.lost:
            lost = set(finished.lost)
            claims.log_lost([job for job, _ in [*completed, *failed] if job.id in lost])
        if finished.failed:
            errors = {job.id: (job, error) for job, error in failed}
            for failure in finished.failed:
                self._log_failed(*errors[failure.id], failure)
        if finished.next:
            self._begin(finished.next)

    def _log_completed(self, completed: list[tuple[Job, Any]], finished: Finished) -> None:
        self._log.tally.completed += len(finished.completed)
        self._log.tally.stopped += len(finished.stopped)
        if self._is_listed:
            ids, seconds = set(finished.completed), self._seconds()
            for job, _ in completed:
                if job.id in ids:
                    self._log.list_job(job, _COMPLETED, seconds[job.id])

    def _seconds(self) -> dict[UUID, float]:
        """How long the jobs of the batch ran."""
        return {job.id: seconds for job, _, seconds in self._batch}

    def _record_one(self, job: Job, ending: Ending, seconds: float) -> Ending | None:
        """Record one of the rare endings by its own verb. Returns what was recorded, if anything was."""
        if isinstance(ending, Failed) and ending.disconnected_at is not None:
            if self._restarted_since(ending.disconnected_at - seconds):
                ending = Snoozed("The database server was restarted or replaced while it ran.", 0.0)
            else:
                ending = ending._replace(disconnected_at=None)
        if isinstance(ending, Recorded | NotBegun):
            if ending == Recorded(lost=True):
                self._claims.log_lost([job])
            self._claims.release(job)
            return ending
        recorded = unless_locked(self._using, partial(self._record_alone, job, ending), LOCK_SECONDS)
        if recorded is None:
            self._put_aside(job, ending, seconds)
        else:
            self._claims.release(job)
        return recorded

    def _record_alone(self, job: Job, ending: Ending) -> Ending:
        try:
            failure = record_ending(job, ending, self._using)
            if failure is not None and isinstance(ending, Failed):
                self._log_failed(job, ending.error, failure)
            return ending
        except InvalidTransition as error:
            if error.state == JobState.CANCELLING:
                services.acknowledge_cancellation(job, was_executing=True, using=self._using)
                return Stopped("cancelled while it ran")
        except (ClaimLost, JobNotFound):
            pass
        except JobQueueError as error:  # the ending is invalid, but the job must end
            self._log_failed(job, error, services.fail(job, error, using=self._using))
            return Failed(error)
        self._claims.log_lost([job])
        return Recorded(lost=True)

    def _resume_late(self, jobs: list[Job]) -> None:
        """Verify and begin jobs that waited too long. Jobs of a group are returned to the queue together with it."""
        for job in jobs:
            if job.came_by_group:
                self._record_one(job, Snoozed("it was begun too late", 0.0), 0.0)
        self._begin_late([job for job in jobs if not job.came_by_group])

    # ------------------------------------------------------------------------- jobs that other transactions have locked

    def _put_aside(self, job: Job, ending: Ending, seconds: float) -> None:
        """Record this result later, so that other results do not wait for the transaction that has locked its job."""
        before = self._claims.locked.get(job.id)
        pause = 0.05 if before is None else min(2 * before.pause, 1.0)
        self._claims.locked[job.id] = LockedOutcome(job, ending, seconds, pause, time.monotonic() + pause)

    def retry_locked(self, now: float) -> None:
        """Try to record results again that were put aside."""
        if self._claims.locked:
            for job, ending, seconds, _, retry_at in list(self._claims.locked.values()):
                if now >= retry_at:
                    self._executor.results.append((job, ending, seconds))

    # -------------------------------------------------------------------------------------------------- logs and counts

    def _log_failed(self, job: Job, error: object, failure: services.Failure) -> None:
        trace = error if isinstance(error, BaseException) else None
        label, attempt, why = job_label(job, failure.seq), _attempt_of(job, failure), error_line(error)
        facts = {
            "worker": self._claims.identity.name,
            "job": str(failure.id),
            "seq": failure.seq,
            "queue": job.queue_id,
            "handler": job.name,
            "key": job.singleton_key,
            "attempt": job.attempt,
            "state": failure.state,
            "retries": failure.retry_count,
            "retry_limit": failure.retry_limit,
            "retry_in_seconds": failure.retry_in_seconds,
            "error": why,
        }
        if failure.will_retry:
            self._log.tally.retried += 1
            pause = failure.retry_in_seconds or 0
            logger.warning(
                "job failed: %s attempt %s: %s; next attempt in %g s",
                label,
                attempt,
                why,
                pause,
                exc_info=trace,
                extra=facts,
            )
        else:
            self._log.tally.failed += 1
            logger.error(
                "job failed for good: %s attempt %s: %s; %s",
                label,
                attempt,
                why,
                _aftermath(job, failure),
                exc_info=trace,
                extra=facts,
            )
        if job_finished.receivers:
            self._failures[failure.id] = failure

    def _count(self, batch: list[Result]) -> None:
        claims, has_receivers, done, failed = self._claims, bool(job_finished.receivers), 0, 0
        held, locked = claims.jobs, claims.locked
        for job, ending, seconds in batch:
            kind = type(ending)
            if kind is NotBegun or kind is Late or (locked and held.get(job.id) is job):
                continue
            if kind is Failed:
                failed += 1
            else:
                done += 1
            if has_receivers:
                send_finished(job, ending, seconds, self._failures.pop(job.id, None))
        claims.done += done
        claims.failed += failed
        claims.asynchronous &= claims.jobs.keys()
        claims.publish_counts()
        self._log.publish()
