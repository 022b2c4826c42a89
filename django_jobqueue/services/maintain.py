"""Background maintenance: expiry, lost workers, retention, stranded lanes, backlogs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db.models import Exists, OuterRef, Q

from ..conf import get_settings
from ..engine import lanes, minutes, sql
from ..engine.backlog import total_waiting
from ..engine.databases import database, execute, named
from ..engine.lanes import chunks, leaves_of, release_pending_of
from ..engine.queues import check_exists
from ..engine.recovery import (
    UNANSWERED,
    Expire,
    Lose,
    MissHeartbeat,
    find_stranded,
    grace_is_left,
    is_gone,
    jobs_of,
    live_workers,
    sweep,
)
from ..engine.retention import DELETED_AT_ONCE, delete_ended, delete_older, delete_overdue, delete_waiting
from ..engine.sweeps import bounds
from ..engine.transactions import at, in_transaction, logger
from ..expressions import Seconds, StatementTimestamp
from ..identifiers import as_uuid
from ..log_texts import one_line
from ..models import JobWrite, Queue, StagedJob, Worker
from ..options import check_moment, check_ttl
from ..signals import queue_backlog
from ..states import JobState
from ..text import clean_text

KEEP_STAGED = timedelta(days=1)
KEEP_WRITES = timedelta(days=90)
FORGOTTEN_AT_ONCE = 50_000


def expire(*, using: str | None = None) -> dict[str, int]:
    """End the attempts of active jobs that are past their deadline, and return the number of jobs per queue.

    A job with retries left waits for its next attempt, others become expired. While the worker of a job is alive, the
    job is not expired before the grace period in which the worker stops the handler itself has ended, so that two
    handlers of a key never overlap. For the same reason, a cancellation that was not answered ends as unknown only if
    the worker is gone or the grace period has ended.
    """
    using = database(using)
    now = StatementTimestamp()
    patience = timedelta(seconds=get_settings().CANCEL_GRACE_SECONDS)
    alive = Exists(live_workers(using).filter(grace_is_left(OuterRef("expire_at")), pk=OuterRef("incarnation")))
    overdue = jobs_of(using).filter(~Q(alive), state=JobState.ACTIVE, expire_at__lte=now)
    expired = sweep(using, overdue, Expire())
    silent = jobs_of(using).filter(~Q(alive), state=JobState.CANCELLING, cancel_requested_at__lte=now - patience)
    sweep(using, silent, UNANSWERED)
    return expired


def recover_lost(incarnations: Iterable[UUID] = (), *, how: str = "", using: str | None = None) -> dict[str, int]:
    """Return the jobs of lost workers to the queue, and return the number of jobs per queue.

    A worker is lost if it is one of these ``incarnations`` (``how`` says how they ended, if that was seen), if its
    heartbeat is too old by its own settings, or if it did not send the heartbeat of a job that has its own. The lost
    attempt uses up a retry. A job whose worker was lost ``CRASH_LIMIT`` times in a row fails with the reason
    ``crash_loop``.
    """
    using, incarnations = database(using), [as_uuid(id, option="incarnation") for id in incarnations]
    how = clean_text(how, max_chars=200)
    now = StatementTimestamp()
    gone = Worker.objects.using(using).filter(is_gone(), pk=OuterRef("incarnation"))
    theirs = Q(incarnation__in=incarnations) | Q(Exists(gone))
    lost = Counter(sweep(using, jobs_of(using).running().filter(theirs), Lose(how)))
    left = jobs_of(using).running().filter(assignee=OuterRef("name"), incarnation=OuterRef("pk"))
    silent_workers = Worker.objects.using(using).filter(is_gone() | Q(pk__in=incarnations), stopped_at=None)
    silent_workers = silent_workers.exclude(Exists(left))  # jobs that are locked are left to the next sweep
    silent_workers.update(stopped_at=now, exit_text=(how or "its heartbeat stopped")[:255])
    # Only housekeeping processes store timings. While one is alive it sends the heartbeats of its jobs, at most a
    # moment late because the table was locked.
    alive = Exists(live_workers(using).filter(pk=OuterRef("incarnation"), lost_seconds__isnull=False))
    silent = jobs_of(using).filter(
        ~Q(alive),
        state=JobState.ACTIVE,
        heartbeat_seconds__isnull=False,
        heartbeat_at__lte=now - Seconds("heartbeat_seconds"),
    )
    lost.update(sweep(using, silent, MissHeartbeat()))
    return dict(lost)


def check_lanes(*, using: str | None = None) -> list[lanes.Lane]:
    """Release stranded lanes, in which a job waits although nothing blocks it, and return them.

    A lane whose release is pending is not stranded. A stranded lane is a bug of django_jobqueue and logged as an error.
    """
    using = database(using)
    stranded = sorted(find_stranded(using, bounds()))
    if stranded:
        logger.error(
            "released stranded lanes: %d, the first is %s key=%s; report this as a bug of django_jobqueue",
            len(stranded),
            stranded[0].queue,
            one_line(stranded[0].key),
            extra={"lanes": [tuple(lane) for lane in stranded], "number": len(stranded)},
        )
        lanes.release_each(using, stranded)
    return stranded


def cleanup(
    ttl: float | timedelta | None = None, *, queue: str | None = None, using: str | None = None
) -> dict[str, int]:
    """Delete old jobs, and return the number of jobs per queue.

    With ``ttl``, only completed jobs that are older than this are deleted. Without it, jobs are deleted by their own
    retention: finished and failed jobs, and jobs that waited too long. Jobs that block an ordered key, or wait behind
    such a job, are never deleted. With ``JOBQUEUE["ARCHIVE"]`` finished jobs are left to the archive. Raises
    ``InvalidOption`` for a ``ttl`` that is not greater than zero, and ``QueueNotFound``.
    """
    using = database(using)
    name = None if queue is None else check_exists(queue, using).name
    limits = bounds()
    if ttl is not None:
        return dict(delete_older(using, name, check_ttl(ttl), limits))
    deleted: Counter[str] = Counter()
    if not get_settings().ARCHIVE:
        deleted += delete_ended(using, name, limits)
    deleted += delete_overdue(using, name, limits)
    deleted += delete_waiting(using, name, limits)
    return dict(deleted)


def delete_archived(queue: str, jobs: Iterable[tuple[UUID | str, datetime]], *, using: str | None = None) -> int:
    """Delete finished jobs that the archive has verified, and return their number.

    Each job is given as its id and the time it ended. Jobs that were retried since, block a key or are locked are not
    deleted. Raises ``InvalidOption`` for an invalid id or time.
    """
    using, queue = database(using), named(queue)
    pairs = [(as_uuid(id), check_moment(ended, option="finalized_at")) for id, ended in jobs]
    statement, deleted = at(leaves_of(using, [queue])[queue], sql.maintain.DELETE_ARCHIVED), 0
    for some in chunks(pairs, DELETED_AT_ONCE):
        params = {"queue": queue, "ids": [id for id, _ in some], "ended": [ended for _, ended in some]}
        deleted += in_transaction(using, partial(execute, using, statement, params))
    return deleted


def warn_backlogs(*, using: str | None = None) -> dict[str, int]:
    """Log and signal each queue with more waiting jobs than its ``warning_queue_size``; return the number per queue.

    A number far above 100,000 is not exact, because counting stops there.
    """
    using = database(using)
    watched = {queue.name: queue for queue in Queue.objects.using(using).filter(warning_queue_size__isnull=False)}
    if not watched:
        return {}
    largest = max(queue.warning_queue_size or 0 for queue in watched.values())
    numbers = total_waiting(watched, at_least=largest + 1, using=using)
    backlogs = {
        name: numbers[name] for name, queue in watched.items() if numbers[name] > (queue.warning_queue_size or 0)
    }
    for name, size in backlogs.items():
        queue = watched[name]
        logger.warning(
            "backlog: queue %s has %d waiting jobs, more than its warning_queue_size of %d",
            name,
            size,
            queue.warning_queue_size,
            extra={"queue": name, "waiting": size, "limit": queue.warning_queue_size},
        )
        queue_backlog.send_robust(sender=Queue, queue=queue, waiting=size)
    return backlogs


def release_pending(*, using: str | None = None) -> int:
    """Release the lanes that earlier transactions could not release, and return their number.

    Never waits for a lock: lanes that are still locked stay pending. The housekeeping process of a worker calls this
    every second.
    """
    return release_pending_of(None, database(using))


def forget_staged(*, using: str | None = None) -> int:
    """Delete what bulk sends leave behind, and return the number of rows.

    These are jobs that were staged more than a day ago and never committed, writes that were committed more than 90
    days ago, and rows of files that were last seen more than ``SENT_ROW_DAYS`` ago. Maintenance calls this.
    """
    using = database(using)
    forgotten = execute(using, sql.maintain.FORGET_SENT_ROWS, [get_settings().SENT_ROW_DAYS, FORGOTTEN_AT_ONCE])
    staged = StagedJob.objects.using(using).filter(staged_at__lte=StatementTimestamp() - KEEP_STAGED)
    writes = JobWrite.objects.using(using).filter(committed_at__lte=StatementTimestamp() - KEEP_WRITES)
    return forgotten + staged._raw_delete(using) + writes._raw_delete(using)


# ------------------------------------------------------------------------------------------------------------ minutes


def fill_minutes(*, until_now: bool = False, using: str | None = None) -> int:
    """Count every complete minute of the last hour that is not counted yet, and return the number of minutes.

    With ``until_now`` the current minute is counted as well, so far as it has passed; it is counted again when it is
    complete. Only one process counts at a time; for another, 0 is returned.
    """
    return minutes.fill(database(using), until_now=until_now)


def forget_old_minutes(*, limit: int = 10_000, using: str | None = None) -> int:
    """Delete up to ``limit`` minutes that are older than ``STATISTICS_DAYS``, and return their number."""
    return minutes.forget(get_settings().STATISTICS_DAYS, limit, database(using))
