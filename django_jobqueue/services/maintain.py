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
from ..engine.databases import database, execute
from ..engine.lanes import chunks, leaves_of, release_pending_of
from ..engine.queues import check_exists, named
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
from ..engine.transactions import in_transaction, logger
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
    """End the attempts of active jobs past their time, and return how many of each queue.

    With retries left a job waits for the next attempt, otherwise it becomes expired. While its worker is alive it is
    given the grace in which that worker stops the handler itself, so that two handlers of a key never overlap. For the
    same reason a cancellation that was not answered ends as unknown only when the worker is gone or that time is over.
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
    """Take jobs back from workers that vanished, and return how many of each queue.

    Vanished are these ``incarnations`` (``how`` says how they ended, if that was seen), workers silent for too
    long, and workers that did not send the heartbeat of a job that has one of its own. It costs the job a retry;
    one that took down its worker three times in a row fails with the reason ``crash_loop``. Each worker is judged
    by its own timings.
    """
    using, incarnations = database(using), [as_uuid(one, option="incarnation") for one in incarnations]
    how = clean_text(how, max_chars=200)
    now = StatementTimestamp()
    gone = Worker.objects.using(using).filter(is_gone(), pk=OuterRef("incarnation"))
    theirs = Q(incarnation__in=incarnations) | Q(Exists(gone))
    lost = Counter(sweep(using, jobs_of(using).running().filter(theirs), Lose(how)))
    left = jobs_of(using).running().filter(assignee=OuterRef("name"), incarnation=OuterRef("pk"))
    silent_workers = Worker.objects.using(using).filter(is_gone() | Q(pk__in=incarnations), stopped_at=None)
    silent_workers = silent_workers.exclude(Exists(left))  # rows that are locked now: the next sweep sees them
    silent_workers.update(stopped_at=now, exit_text=(how or "its heartbeat stopped")[:255])
    # A living housekeeping process, which is what stores timings, sends the heartbeats of its jobs. When it could not,
    # because the table was locked, it will in a moment.
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
    """Stranded lanes, in which a job waits although nothing blocks it: release them, and report it as a bug of ours.

    A lane whose release is pending is not stranded.
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
    """Delete old jobs and return how many of each queue; never one that blocks an ordered key, or waits behind one.

    With ``ttl`` completed jobs older than that and nothing else; without it, what the jobs' own retention says:
    finished and failed jobs, and jobs that waited too long. With ``JOBQUEUE["ARCHIVE"]`` finished jobs are left to the
    archive. Raises ``InvalidOption`` for a ``ttl`` that is not more than zero.
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
    """Delete finished jobs that the archive has verified, each given with the time it ended; return how many.

    A job that was given another attempt meanwhile, blocks a key, or is locked stays. Raises
    ``InvalidOption`` for what is no id or no time.
    """
    using, queue = database(using), named(queue)
    pairs = [(as_uuid(id), check_moment(ended, option="finalized_at")) for id, ended in jobs]
    statement, deleted = sql.parts.at(leaves_of(using, [queue])[queue], sql.maintain.DELETE_ARCHIVED), 0
    for some in chunks(pairs, DELETED_AT_ONCE):
        params = {"queue": queue, "ids": [id for id, _ in some], "ended": [ended for _, ended in some]}
        deleted += in_transaction(using, partial(execute, using, statement, params))
    return deleted


def warn_backlogs(*, using: str | None = None) -> dict[str, int]:
    """Queues with more waiting jobs than their ``warning_queue_size``: a log line and a signal for each.

    Far more than a hundred thousand are not counted to the end.
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
    """Release the lanes that earlier transactions could not, and return how many.

    Never waits: what is still locked stays pending. The housekeeping process of a worker calls this every second.
    """
    return release_pending_of(None, database(using))


def forget_staged(*, using: str | None = None) -> int:
    """Delete what writes of many jobs leave behind, and return how many rows.

    That is what was staged a day ago and never committed, writes committed 90 days ago, and rows of files last seen
    ``SENT_ROW_DAYS`` ago. Called by maintenance.
    """
    using = database(using)
    forgotten = execute(using, sql.maintain.FORGET_SENT_ROWS, [get_settings().SENT_ROW_DAYS, FORGOTTEN_AT_ONCE])
    staged = StagedJob.objects.using(using).filter(staged_at__lte=StatementTimestamp() - KEEP_STAGED)
    writes = JobWrite.objects.using(using).filter(committed_at__lte=StatementTimestamp() - KEEP_WRITES)
    return forgotten + staged._raw_delete(using) + writes._raw_delete(using)


# ------------------------------------------------------------------------------------------------------------ minutes


def fill_minutes(*, using: str | None = None) -> int:
    """Count every complete minute that is not counted yet, of the last hour at most; how many minutes that were.

    Only one process counts at a time, and another that asks meanwhile is told 0.
    """
    return minutes.fill(database(using))


def forget_old_minutes(*, limit: int = 10_000, using: str | None = None) -> int:
    """Delete minutes older than ``STATISTICS_DAYS``, at most ``limit`` of them; how many that were."""
    return minutes.forget(get_settings().STATISTICS_DAYS, limit, database(using))
