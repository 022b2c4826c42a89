"""Moving jobs from state to state, for all verbs except the claim and the plain completion.

A verb passes the ids of jobs and a decision about them. Here the jobs are locked in the one order that cannot deadlock
and moved by one statement. Jobs that failed for good are copied to their dead-letter queue, and lanes are released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from django.db import IntegrityError, OperationalError, connections, transaction
from psycopg.errors import UniqueViolation

from ..database_errors import explain
from ..error_summary import summary_of_text
from ..exceptions import InvalidTransition
from ..fingerprints import fingerprint
from ..identifiers import uuid7
from ..models import Job, Queue
from ..policies import LANED, ORDERED
from ..states import BLOCKING, DEAD, ELIGIBLE, FOLLOWS, RETRYING, FailureReason, JobState, leads_to
from ..text import HISTORY_CHARS, shortened
from . import announcements, lanes, sql
from .claims import JobReference
from .databases import rows
from .lanes import PAUSES, Lane, Locked, lanes_of
from .transactions import T, in_transaction, logger

# The columns that a decision may need; data and history are not read, because they may be large.
_NEEDED = (
    "id", "queue_id", "seq", "policy", "state", "hold", "attempt", "singleton_key", "retry_count", "retry_limit",
    "retry_delay", "retry_backoff", "retry_delay_max", "crashes", "assignee", "assigned_at", "last_retry_at",
    "group_key", "grouped", "claim_number",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one job; columns that are ``None`` do not change."""

    state: JobState
    delay: float | None = None  # seconds until a waiting job is due
    charge: int = 0  # retries that this uses up
    more_retries: int = 0  # by how much this raises the retry limit
    crashes: int | None = None
    error: str | None = None  # a text that can be stored, see :func:`django_jobqueue.text.clean_text`
    error_summary: str | None = None  # if the text of the error does not tell it
    reason: str | None = None
    note: str | None = None
    data: str | None = None
    outcome: str | None = None  # how the attempt ended, if an attempt ended
    died: bool = False  # failed for good: a copy is sent to the dead-letter queue


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job is not changed."""

    why: str


Answers = dict[UUID, Change | Refusal]


class Decision(Protocol):
    """Decides about the changes of jobs: a small frozen dataclass, asked once, when the jobs are locked."""

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        """The change or the refusal of each job; a job without an answer is not changed. Raises if none may move."""


@dataclass(frozen=True, slots=True)
class Become:
    """The same change for all jobs."""

    change: Change

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        return dict.fromkeys((job.pk for job in jobs), self.change)


class Moved(NamedTuple):
    """The jobs as they were when they were locked, their changes, when they are due, and the refusals."""

    jobs: list[Job]
    changes: dict[UUID, Change]
    due: dict[UUID, datetime]
    refused: dict[UUID, str]


def move(
    using: str,
    ids: Collection[UUID],
    decision: Decision,
    *,
    queue: str | None = None,
    skip_locked: bool = False,
    pauses: Collection[float] | None = None,
) -> Moved:
    """Lock these jobs, and move each as the decision says; return the jobs and their changes.

    With ``pauses`` it does not wait for the keys of the jobs, but tries again after each pause. Lanes that other
    transactions have still locked then are released later.
    """

    def work() -> Moved:
        locked, jobs = lock(using, ids, queue=queue, skip_locked=skip_locked, pauses=pauses)
        answers = decision.answers(using, jobs)
        changes = {id: answer for id, answer in answers.items() if isinstance(answer, Change)}
        refused = {id: answer.why for id, answer in answers.items() if isinstance(answer, Refusal)}
        behind = _behind_in_group(using, jobs, changes)
        returned = {job.pk: _RETURNED for job in behind}
        moving = [*(job for job in jobs if job.pk in changes), *behind]
        return Moved(jobs, changes, apply(using, moving, changes | returned, locked), refused)

    return in_transaction(using, work)


def despite_collisions(work: Callable[[], T], using: str) -> T:
    """Run ``work``, and again if a job that was sent meanwhile has taken a slot: the next run sees that job."""
    for tries_left in reversed(range(5)):
        try:
            with transaction.atomic(using=using) if not connections[using].get_autocommit() else nullcontext():
                return work()
        except OperationalError as error:
            explain(error, using)
            raise
        except IntegrityError as error:
            if not tries_left or not isinstance(error.__cause__, UniqueViolation):
                raise
    raise AssertionError("unreachable")


def move_one(target: JobReference, decision: Decision) -> Moved:
    """Move the job that a verb was given. If another transaction has locked its key, its lane is released later."""
    return move(target.using, [target.id], decision, queue=target.queue, pauses=PAUSES)


_RETURNED = Change(
    JobState.RETRY,
    delay=0,
    error="a job ahead of it in its group did not succeed",
    reason=FailureReason.RETURNED,
    outcome="returned",
)


def _behind_in_group(using: str, jobs: Iterable[Job], changes: dict[UUID, Change]) -> list[Job]:
    """Return later jobs of a grouped read to the queue if a job before them in the group did not succeed.

    Otherwise they would overtake it. They are locked here. Rows locked by another transaction are skipped: it is
    finishing them.
    """
    stuck = [job for job in jobs if job.grouped and job.pk in changes and changes[job.pk].state in RETRYING | DEAD]
    returned: dict[UUID, Job] = {}
    for job in stuck:
        batch = Job.objects.using(using).in_queue(job.queue_id).in_state(JobState.ACTIVE).assigned_to(job.assignee)
        batch = batch.filter(grouped=True, group_key=job.group_key, claim_number=job.claim_number, seq__gt=job.seq)
        behind = batch.exclude(pk__in=changes.keys()).select_for_update(skip_locked=True).only(*_NEEDED)
        returned |= {job.pk: job for job in behind}
    return list(returned.values())


def lock(
    using: str,
    ids: Collection[UUID],
    *,
    queue: str | None = None,
    skip_locked: bool = False,
    pauses: Collection[float] | None = None,
) -> tuple[Locked, list[Job]]:
    """Lock the lanes of these jobs, then the jobs themselves, by id.

    The keys must be locked first; this is possible because a job's queue and key never change. With ``skip_locked`` it
    never waits, and jobs whose key or row another transaction has locked are left out.
    """
    those = Job.objects.using(using).filter(pk__in=ids)
    if queue is not None:
        those = those.filter(queue=queue)
    laned = those.filter(policy__in=sorted(LANED)).order_by().values_list("queue_id", "policy", "singleton_key")
    locked = Locked(using, {Lane(*lane) for lane in laned}, pauses=() if skip_locked else pauses)
    jobs = list(those.order_by("pk").select_for_update(skip_locked=skip_locked).only(*_NEEDED))
    if skip_locked:
        jobs = [job for job in jobs if (job.queue_id, job.policy, job.singleton_key) not in locked.refused]
    return locked, jobs


def apply(using: str, jobs: list[Job], changes: dict[UUID, Change], locked: Locked) -> dict[UUID, datetime]:
    """Write the changes of jobs that are locked already; return when each is next due.

    All transitions go through here. Raises ``InvalidTransition`` for a transition that ``FOLLOWS`` does not list.
    """
    if not jobs:
        return {}
    for job in jobs:
        check_transition(job, changes[job.pk].state)
    due = {id: start_after for id, start_after, _ in rows(using, sql.transitions.MOVE, _arrays(jobs, changes))}
    _copy_dead(using, [job.pk for job in jobs if changes[job.pk].died])
    if freeing := [job for job in jobs if _frees_lane(job, changes[job.pk].state)]:
        locked.release(lanes_of(freeing))
    announcements.moved(using, jobs, changes)
    return due


def check_transition(job: Job, wanted: JobState) -> None:
    if wanted not in FOLLOWS[JobState(job.state)]:
        raise InvalidTransition(job_id=job.pk, state=job.state, wanted=wanted.value, allowed=leads_to(wanted))


def _frees_lane(job: Job, state: JobState) -> bool:
    """Whether other jobs of its lane may be fetchable now; an ordered lane stays blocked while a job blocks it."""
    if state == JobState.CANCELLING:
        return False
    return not (job.policy == ORDERED and state in BLOCKING)


def _arrays(jobs: Iterable[Job], changes: dict[UUID, Change]) -> dict[str, list[Any]]:
    """The parameters of the statement: one array for each column of the changes."""
    columns: dict[str, list[Any]] = {name: [] for name in sql.transitions.CHANGE}
    for job in sorted(jobs, key=attrgetter("seq")):  # jobs that fail together wait in the order they were sent
        change = changes[job.pk]
        # A job without order that waits again goes behind the waiting jobs; on an ordered queue it keeps its place.
        behind = change.state in ELIGIBLE and job.policy != ORDERED and change.charge > 0
        error, summary, short, mark = change.error, None, None, None
        if error:
            summary = change.error_summary or summary_of_text(error)
            short = shortened(error, HISTORY_CHARS) if len(error) > HISTORY_CHARS else None
            mark = fingerprint(error, summary) if change.outcome else None
        delay = None if change.delay is None else float(change.delay)  # one type for the whole column
        row = (job.pk, job.queue_id, change.state.value, delay, change.charge, change.more_retries, behind,
               change.crashes, error, summary, short, change.reason, change.note, change.data, mark,
               change.outcome)  # fmt: skip
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return columns


def _copy_dead(using: str, ids: list[UUID]) -> None:
    if not ids:
        return
    copied = rows(using, sql.transitions.DEAD_LETTER, {"ids": ids, "copies": [uuid7() for _ in ids]})
    announcements.wake(using, {queue for queue, _ in copied})
    done = {source for _, source in copied}
    missing = Queue.objects.using(using).filter(dead_letter__isnull=False, jobs__pk__in=set(ids) - done)
    if set(ids) - done and (queues := list(missing.values_list("name", flat=True).distinct())):
        logger.error(
            "dead-letter queue is missing: of queue %s; jobs that failed for good are not copied",
            ", ".join(queues),
            extra={"queues": queues, "number": len(ids) - len(done)},
        )


def delete_rows(using: str, jobs: list[Job], locked: lanes.Locked) -> None:
    Job.objects.using(using).filter(pk__in=[job.pk for job in jobs])._raw_delete(using)
    locked.release(lanes_of(jobs))
    announcements.deleted(using, jobs)
