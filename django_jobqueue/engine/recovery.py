"""Jobs that their workers will not finish: expired, lost, or past their lease or heartbeat; and stranded lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce
from django.db.models.lookups import GreaterThan, LessThanOrEqual

from ..conf import get_settings
from ..expressions import HasSessionLock, Seconds, StatementTimestamp
from ..models import Job, Worker
from ..policies import LANED, ORDERED
from ..querysets import JobQuerySet
from ..states import FailureReason, JobState
from . import lanes, sql
from .announcements import wake
from .databases import database, execute, rows
from .lanes import chunks
from .retry_decision import Fail, Failing, ReturnToQueue, retrying_beside
from .sweeps import AT_ONCE, Bounds, bounds, queues_with
from .transactions import at, in_transaction
from .transitions import Answers, Become, Change, Decision, move

RELEASED_AT_ONCE = 1_000
WHERE_RUNNING = ("assignee", "queue_id")  # the order of the index of running jobs


UNANSWERED = Become(
    Change(
        JobState.UNKNOWN_STOPPED,
        error="Cancelled, and its worker did not answer.",
        reason=FailureReason.CANCELLED,
        outcome="unknown",
    )
)


@dataclass(frozen=True, slots=True)
class Expire:
    """Ends attempts that took longer than allowed."""

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        text = "It took longer than the {} seconds it was allowed."
        allowed = jobs_of(using).filter(pk__in=[job.pk for job in jobs]).values_list("pk", "expire_in_seconds")
        failing = {
            id: Failing(text.format(seconds), FailureReason.EXPIRED, dies_as=JobState.EXPIRED)
            for id, seconds in allowed
        }
        return Fail(failing).answers(using, jobs)


def has_lost_workers(*, using: str) -> bool:
    """Whether a worker whose heartbeat is too old is not yet recorded as stopped. This reads only a few rows."""
    return Worker.objects.using(using).filter(is_gone(), stopped_at=None).exists()


def is_gone() -> Q:
    """Workers that have stopped, or whose heartbeat is too old: they no longer hold their jobs.

    A worker without its session lock is lost sooner: it has ended, or it cannot reach the database and has ended its
    handlers by then.
    """
    unlocked = Q(_is_silent("unlocked_seconds"), has_session_lock=True) & ~Q(HasSessionLock("id"))
    return Q(stopped_at__isnull=False) | Q(_is_silent("lost_seconds")) | unlocked


# For workers that have not stored their own timings (an older release, a stream) the settings of this process are used.
_DEFAULTS = {
    "unlocked_seconds": "WORKER_UNLOCKED_SECONDS",
    "lost_seconds": "WORKER_LOST_SECONDS",
    "stop_grace_seconds": "STOP_GRACE_SECONDS",
}


def _timing(name: str) -> Seconds:
    """A timing of a worker, as the worker has stored it; the workers of a fleet may have different settings."""
    return Seconds(Coalesce(name, float(getattr(get_settings(), _DEFAULTS[name]))))


def _is_silent(name: str) -> LessThanOrEqual:
    return LessThanOrEqual(F("heartbeat_at"), StatementTimestamp() - _timing(name))


def live_workers(using: str) -> QuerySet[Worker]:
    return Worker.objects.using(using).filter(~Q(_is_silent("lost_seconds")), stopped_at=None)


def grace_is_left(expire_at: Any) -> Any:
    """Whether the worker may still be stopping a handler whose deadline is ``expire_at``."""
    return GreaterThan(expire_at, StatementTimestamp() - _timing("stop_grace_seconds"))


@dataclass(frozen=True, slots=True)
class Lose:
    """Ends attempts whose worker was lost; ``how`` says how it ended, if that was seen."""

    how: str = ""

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        return _lost(using, jobs, f"Worker {{}} {self.how or 'vanished'}, attempt {{}}.", FailureReason.WORKER_LOST)


@dataclass(frozen=True, slots=True)
class MissHeartbeat:
    """Ends attempts whose heartbeat is too old."""

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        return _lost(using, jobs, "No heartbeat in time from worker {}, attempt {}.", FailureReason.HEARTBEAT)


def _lost(using: str, jobs: list[Job], text: str, reason: FailureReason) -> Answers:
    """It is unknown whether the jobs ran: they wait for another attempt, which counts as a crash, or are stopped."""
    texts = {job.pk: text.format(job.assignee or "without a name", job.attempt) for job in jobs}
    cancelled = [job for job in jobs if job.state == JobState.CANCELLING]
    running = [job for job in jobs if job.state != JobState.CANCELLING]
    failing = {job.pk: Failing(texts[job.pk], reason, waits_as=JobState.UNKNOWN_RETRY, crashed=True) for job in running}
    stopped: Answers = {job.pk: _unknown(texts[job.pk]) for job in cancelled}
    return stopped | Fail(failing).answers(using, running)


def _unknown(text: str) -> Change:
    return Change(JobState.UNKNOWN_STOPPED, error=text, reason=FailureReason.CANCELLED, outcome="unknown")


def return_uncharged(using: str, which: Callable[[], JobQuerySet], text: str) -> dict[str, int]:
    """Return running jobs to the queue without using up a retry, all in one transaction or in the caller's."""

    def work() -> dict[str, int]:
        ids = list(which().values_list("pk", flat=True))
        moved = move(using, ids, ReturnUncharged(text))
        return dict(Counter(job.queue_id for job in moved.jobs if job.pk in moved.changes))

    return in_transaction(using, work)


@dataclass(frozen=True, slots=True)
class ReturnUncharged:
    """Returns running jobs to the queue without using up a retry; it is unknown how far they came."""

    text: str

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        beside = retrying_beside(using, jobs)
        answers: Answers = {}
        for job in jobs:
            if job.state == JobState.CANCELLING:
                answers[job.pk] = _unknown(self.text)
            elif job.state == JobState.ACTIVE:
                answers[job.pk] = self._change(job.pk in beside)
        return answers

    def _change(self, retry_taken: bool) -> Change:
        if retry_taken:
            reason = FailureReason.RETRY_TAKEN
            return Change(JobState.FAILED, error=self.text, reason=reason, outcome="unknown", died=True)
        reason = FailureReason.WORKER_LOST
        return Change(JobState.UNKNOWN_RETRY, delay=0, error=self.text, reason=reason, outcome="unknown")


def end_leases(using: str, queue: str) -> int:
    """Return jobs of this queue whose lease has ended to the queue, without using up a retry."""
    ended = jobs_of(using).in_queue(queue).filter(state=JobState.ACTIVE, lease_until__lte=StatementTimestamp())
    returned = sweep(using, ended, ReturnToQueue("its lease ran out"), ("lease_until",))
    return sum(returned.values())


def jobs_of(using: str) -> JobQuerySet:
    return Job.objects.using(using).all()


@dataclass(frozen=True, slots=True)
class IfStillSelected:
    """Applies a decision to the locked jobs that the queryset still selects."""

    which: JobQuerySet
    decision: Decision

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        still = set(self.which.filter(pk__in=[job.pk for job in jobs]).values_list("pk", flat=True))
        return self.decision.answers(using, [job for job in jobs if job.pk in still])


def sweep(using: str, which: JobQuerySet, decision: Decision, order: tuple[str, ...] = WHERE_RUNNING) -> dict[str, int]:
    """Move all selected jobs, a bounded number at a time; jobs locked by another transaction are skipped."""
    counts: Counter[str] = Counter()
    limits = bounds()
    for ids in chunks(_selected_ids(using, which, order), AT_ONCE):
        if limits.are_reached():
            break
        moved = move(using, ids, IfStillSelected(which, decision), skip_locked=True)
        counts.update(job.queue_id for job in moved.jobs if job.pk in moved.changes)
    return dict(counts)


def _selected_ids(using: str, which: JobQuerySet, order: tuple[str, ...]) -> list[UUID]:
    """The ids of the selected jobs, read along the index that has this order, whatever the planner estimates."""
    ids = which.order_by(*order).values_list("pk", flat=True)
    return sorted(in_transaction(using, partial(list, ids)))


def release_due(*, using: str | None = None) -> dict[str, int]:
    """Lift the holds of due jobs, return jobs whose lease has ended to the queue, and return the number per queue.

    A fetch does this for its own queue. This is for queues that are not being fetched from at the moment.
    """
    using = database(using)
    limits = bounds()
    counts: Counter[str] = Counter()
    due = queues_with(using, sql.parts.IS_UNTIL)
    leaves = lanes.leaves_of(using, due)
    for queue in due:
        release = partial(
            execute,
            using,
            at(leaves[queue], sql.fetch.RELEASE_DUE),
            {"queue": queue, "most": RELEASED_AT_ONCE},
        )
        released = RELEASED_AT_ONCE
        while released == RELEASED_AT_ONCE and not limits.are_reached():
            released = in_transaction(using, release)
            counts[queue] += released
    for queue in queues_with(using, sql.parts.IS_LEASED):
        counts[queue] += end_leases(using, queue)
    wake(using, +counts)
    return dict(+counts)


LANES_AT_ONCE = 1_000


def find_stranded(using: str, limits: Bounds) -> Iterator[lanes.Lane]:
    """Check the lanes of all policies and queues; a sweep with bounds continues where the last one stopped."""
    begin, limits.place = limits.place or {}, None
    for policy in sorted(LANED):
        if policy < begin.get("policy", ""):
            continue
        which = (
            sql.maintain.HAS_LANE_IN_ORDER if policy == ORDERED else sql.maintain.HAS_LANE_OF_ONE.format(policy=policy)
        )
        queues = queues_with(using, which, start=begin.get("queue", ""))
        leaves = lanes.leaves_of(using, queues)
        for queue in queues:
            after = begin.get("after") if queue == begin.get("queue") else None
            begin = {}
            for last, keys in _stranded_in(using, queue, leaves[queue], policy, after, limits):
                yield from (lanes.Lane(queue, policy, key) for key in keys)
                if limits.stops_looking(policy=policy, queue=queue, after=last):
                    return
        begin = {}


def _stranded_in(
    using: str, queue: str, leaf: str, policy: str, after: str | None, limits: Bounds
) -> Iterator[tuple[str, list[str]]]:
    """Check the keys of one queue, some at a time; yield the last of them, and those whose lanes are stranded."""
    statement = sql.maintain.STRANDED_IN_ORDER if policy == ORDERED else sql.maintain.STRANDED_OF_ONE
    while True:
        # With some policies the empty key is a lane too.
        looking = at(leaf, statement).format(policy=policy, beyond=">=" if after is None else ">")
        params = {"queue": queue, "after": after or "", "most": LANES_AT_ONCE}
        ((number, last, keys),) = in_transaction(using, partial(rows, using, looking, params))
        limits.looked(number)
        if number:
            yield last, keys
        if number < LANES_AT_ONCE:
            return
        after = last
