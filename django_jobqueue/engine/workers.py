"""The rows that a worker process writes about itself and about the jobs it holds."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import NotSupportedError, ProgrammingError, transaction
from django.db.models import F, Q

from ..claims import Claim
from ..expressions import Seconds, StatementTimestamp
from ..models import Job, Maintenance, Worker
from ..querysets import JobQuerySet
from ..states import JobState
from ..text import clean_text
from . import sql
from .databases import execute, rows
from .recovery import Expire, Lose, sweep
from .retry_decision import ReturnToQueue
from .transactions import in_transaction
from .transitions import Decision

TRIES = 3  # how often jobs with locked rows are tried to be returned
PROGRESS_CHARS = 255


# -------------------------------------------------------------------------------------------- the process as such


def register(worker: Worker, *, using: str) -> None:
    """Store the row of a process that starts; does nothing if the row exists."""
    Worker.objects.using(using).bulk_create([worker], ignore_conflicts=True)


def take_session_locks(incarnations: Iterable[UUID], *, using: str) -> set[UUID]:
    """Take session locks, which show other processes that these processes live, until the session ends.

    Returns the incarnations that are locked now: a session that is ending may still hold the locks of others.
    """
    wanted = [str(one) for one in incarnations]
    if not wanted:
        return set()
    return {id for id, held in rows(using, sql.workers.TAKE_SESSION_LOCKS, [wanted]) if held}


def drop_session_lock(incarnation: UUID, *, using: str) -> None:
    rows(using, sql.workers.DROP_SESSION_LOCK, [str(incarnation)])


class Beat(NamedTuple):
    """The answer to a heartbeat: the processes whose rows exist, and those that were asked to stop."""

    alive: set[UUID]
    stopping: set[UUID]


def beat(stats: Mapping[UUID, str], *, using: str) -> Beat:
    """Send the heartbeats of processes, each with its statistics as JSON; a process declared lost is not renewed."""
    found = rows(using, sql.workers.BEAT, [list(stats), list(stats.values())])
    return Beat({id for id, _ in found}, {id for id, stopping in found if stopping})


def beat_jobs(names: Sequence[str], incarnations: Sequence[UUID], *, using: str) -> int:
    """Send the heartbeats of jobs that have their own, once a third of ``heartbeat_seconds`` has passed."""
    silent = _held(names, incarnations, using).filter(heartbeat_seconds__isnull=False)
    silent = silent.filter(heartbeat_at__lte=StatementTimestamp() - Seconds("heartbeat_seconds") / 3)
    with transaction.atomic(using=using):  # a row that another transaction has locked must not delay the others
        ids = list(silent.select_for_update(skip_locked=True).values_list("pk", flat=True))
        return Job.objects.using(using).filter(pk__in=ids).update(heartbeat_at=StatementTimestamp()) if ids else 0


def has_ended(incarnation: UUID, how: str, *, using: str) -> None:
    """Record that a process has ended; its jobs must have been recovered before."""
    mine = Worker.objects.using(using).filter(pk=incarnation, stopped_at=None)
    mine.update(stopped_at=StatementTimestamp(), exit_text=clean_text(how, max_chars=255))


# ---------------------------------------------------------------------------------------------- the jobs it holds


def _held(names: Sequence[str], incarnations: Sequence[UUID], using: str) -> JobQuerySet:
    # Filtered by name as well as by incarnation, because the index of running jobs begins with the name.
    return Job.objects.using(using).running().filter(assignee__in=names, incarnation__in=incarnations)


def claims_of(name: str, incarnation: UUID, *, using: str) -> dict[Claim, str]:
    """The claims that this process has according to the database, with the states of the jobs."""
    found = _held([name], [incarnation], using).values_list("pk", "attempt", "claim_number", "state")
    return {Claim(id, attempt, number): state for id, attempt, number, state in found}


def renew(jobs: Sequence[Job], *, using: str) -> list[Job]:
    """Give claimed jobs that begin late their full time; return those whose claims are still valid.

    A job that waited in the worker may have been recovered, cancelled or completed meanwhile. A row that another
    transaction has locked is left out, because the other jobs must not wait for it.
    """
    if not jobs:
        return []
    given: list[list[Any]] = [
        [job.queue_id for job in jobs],
        [job.pk for job in jobs],
        [job.attempt for job in jobs],
        [job.held_number for job in jobs],
    ]
    return [jobs[place - 1] for (place,) in in_transaction(using, partial(rows, using, sql.workers.RENEW, given))]


def load_whole(jobs: Sequence[Job], *, using: str) -> None:
    """Load the other columns of jobs that were claimed with only the columns a worker needs."""
    columns = [name for name in sql.parts.CLAIMED if name not in sql.parts.NEEDED]
    by_id = {job.id: job for job in jobs}
    for row in Job.objects.using(using).filter(pk__in=by_id).values("pk", *columns):
        by_id[row.pop("pk")].__dict__.update(row)


def move_deadlines(names: Sequence[str], incarnations: Sequence[UUID], seconds: float, *, using: str) -> int:
    """Move the deadlines of the jobs that these processes run, after the database's clock was set forward."""
    later = timedelta(seconds=seconds)
    return _held(names, incarnations, using).update(expire_at=F("expire_at") + later)


def give_back_unheld(name: str, incarnation: UUID, held: Iterable[Job], message: str, *, using: str) -> int:
    """Return jobs that this process has claimed and does not hold, without using up a retry.

    The answer to their claim was lost, or they were not begun.
    """
    kept = {job.claim for job in held}
    claimed = claims_of(name, incarnation, using=using)
    return give_back_claims(name, incarnation, claimed.keys() - kept, message, using=using)


def give_back_claims(name: str, incarnation: UUID, claims: Collection[Claim], message: str, *, using: str) -> int:
    """Return the jobs of these claims without using up a retry; a job that the process holds by another claim stays."""
    mine = _held([name], [incarnation], using)
    return _recover_all(using, _of(mine, claims), ReturnToQueue(message)) if claims else 0


def _of(mine: JobQuerySet, claims: Collection[Claim | Running]) -> JobQuerySet:
    """The jobs of these claims: a number belongs to one fetch, so no two claims of a job share it."""
    numbers = {claim.number for claim in claims}
    known = Q(claim_number__in=numbers - {None}) | (Q(claim_number=None) if None in numbers else Q(pk__in=[]))
    return mine.filter(known, pk__in=[claim.job_id for claim in claims])


def recover_dead(
    name: str,
    incarnation: UUID,
    how: str,
    *,
    crashed: Collection[Running] = (),
    overdue: Collection[Running] = (),
    using: str,
) -> int:
    """Recover the jobs of a process that was seen to end, and return their number.

    Jobs in ``crashed`` were running when it ended by itself: they use up a retry. Jobs in ``overdue`` were past their
    deadline. The others had not begun, or were ended for another reason, and return to the queue without using up a
    retry. Raises ``StillLocked`` if other transactions have locked some of the jobs; try again then.
    """
    mine = _held([name], [incarnation], using)
    taken = _recover_all(using, _of(mine, overdue).filter(state=JobState.ACTIVE), Expire())
    taken += _recover_all(using, _of(mine, crashed), Lose(how))
    taken += _recover_all(using, mine, ReturnToQueue(f"Its worker {how}."))
    if mine.exists():
        raise StillLocked
    has_ended(incarnation, how, using=using)
    return taken


class Running(NamedTuple):
    """An attempt that was inside a handler: a job, and the number of its claim."""

    job_id: UUID
    number: int


class StillLocked(Exception):
    """Other transactions have locked jobs of a dead process."""


def _recover_all(using: str, which: JobQuerySet, decision: Decision) -> int:
    """Recover all selected jobs; those that another transaction has locked are tried again in a moment."""
    taken = 0
    for tries in range(TRIES):
        taken += sum(sweep(using, which, decision).values())
        if not which.exists():
            break
        time.sleep(0.02 * (tries + 1))
    return taken


def seconds_until(moment: datetime, *, using: str) -> float:
    """The seconds until this moment by the database's clock."""
    return max(0.0, float(rows(using, sql.session.SECONDS_UNTIL, [moment])[0][0]))


def server_identity(*, using: str) -> tuple[Any, ...]:
    """A value that changes when the server is restarted or replaced by another."""
    return rows(using, sql.session.SERVER_STARTED_AT)[0]


def seconds_on_timeline(*, using: str) -> float:
    """The seconds since a worker first saw that this server was promoted; infinite if no worker saw that."""
    try:
        found = rows(using, sql.workers.TIMELINE)
        if not found:  # no maintenance has run yet
            Maintenance.objects.using(using).bulk_create([Maintenance()], ignore_conflicts=True)
            found = rows(using, sql.workers.TIMELINE)
        if not found[0][0]:
            execute(using, sql.workers.SEE_TIMELINE, [found[0][2], found[0][2]])
            found = rows(using, sql.workers.TIMELINE)
    except (ProgrammingError, NotSupportedError):  # not PostgreSQL itself, or a role without the permission
        return math.inf
    return math.inf if found[0][1] is None else float(found[0][1])


def clock(*, using: str) -> float:
    """The database's time."""
    return float(rows(using, sql.session.CLOCK_SECONDS)[0][0])


def report_progress(reports: Sequence[tuple[Job, float | None, str]], *, using: str) -> None:
    """Store the progress and the heartbeats of jobs; nothing is stored for a claim that is no longer valid."""
    if reports:
        said: list[list[Any]] = [
            [job.queue_id for job, _, _ in reports],
            [job.pk for job, _, _ in reports],
            [job.claim.attempt if job.claim else job.attempt for job, _, _ in reports],
            [job.held_number for job, _, _ in reports],
            [fraction for _, fraction, _ in reports],
            [None if fraction is None else clean_text(text, max_chars=PROGRESS_CHARS) for _, fraction, text in reports],
        ]
        execute(using, sql.workers.PROGRESS, said)
