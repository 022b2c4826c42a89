"""Schedules: creating them, and sending the jobs of due slots."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, transaction
from django.db.models import Q

from ..catch_up import CatchUp
from ..conf import get_settings
from ..cron import first_slot, latest_slots
from ..database_errors import explain
from ..engine import sql
from ..engine.databases import database, execute, rows
from ..engine.queues import check_exists
from ..engine.records import Note, changes, keep_record, noted
from ..engine.transactions import in_transaction, unless_locked
from ..exceptions import InvalidOption, JobQueueError, KeyRequired, ScheduleNotFound
from ..expressions import StatementTimestamp
from ..log_texts import error_line, error_text
from ..models import Job, Operation, Queue, Schedule, ScheduleRun
from ..options import (
    REQUIRED_OF_SCHEDULES,
    check_int,
    check_schedule_name,
    clean_schedule_options,
    schedule_defaults,
)
from ..process_memory import ProcessMemory
from ..querysets import ScheduleQuerySet
from ..text import check_text
from .queues import has_table
from .send import send

MAX_CATCH_UP = 100
LATE = timedelta(minutes=1)  # a slot that is handled later than this was missed
LOCK_SECONDS = 0.5  # how long one schedule may delay the others
AFTER_LOCK_SECONDS = 5
LOOK_AGAIN_SECONDS = 60
RUN_DAYS = 30

logger = logging.getLogger("django_jobqueue")


def create_schedule(
    name: str,
    queue: str,
    cron: str,
    *,
    timezone: str = "UTC",
    handler: str = "",
    data: Any = None,
    priority: int = 0,
    singleton_key: str | None = None,
    group_key: str | None = None,
    tags: Iterable[str] = (),
    catch_up: str = CatchUp.LAST.value,
    enabled: bool | None = None,
    operator: str = "",
    reason: str = "",
    using: str | None = None,
    **options: Any,
) -> Schedule:
    """Create a schedule, or change the schedule of this name to these values, and return it.

    Without ``enabled``, a new schedule is on, and an existing one stays on or off. Further options are options of its
    jobs, as for :func:`send`. With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``.

    Raises ``InvalidOption``, also for a schedule that never fires, ``InvalidData``, ``QueueNotFound``, and
    ``KeyRequired`` for a schedule without a key that sends to an ordered queue.
    """
    given: dict[str, Any] = {
        "queue": queue,
        "cron": cron,
        "timezone": timezone,
        "handler": handler,
        "data": data,
        "priority": priority,
        "singleton_key": singleton_key,
        "group_key": group_key,
        "tags": tags,
        "catch_up": catch_up,
    }
    if enabled is not None:
        given["enabled"] = enabled
    return _put(check_schedule_name(name), given, options, noted(operator, reason), database(using))


def run_schedule(
    name: str,
    *,
    operator: str = "",
    reason: str = "",
    confirmation: UUID | None = None,
    using: str | None = None,
) -> Job | None:
    """Send a job of this schedule now, even if the schedule is off, and return the job.

    Returns ``None`` if the policy of its queue refuses the job. The slots of the schedule do not change. With an
    ``operator`` or a ``reason`` the call is recorded as an ``Operation``. With a ``confirmation``, the id of a page
    that asked for it, it sends once: another call with this id returns the job of the first. Raises
    ``ScheduleNotFound``, and the exceptions of :func:`send`.
    """
    using, note = database(using), noted(operator, reason)
    schedule = _get(name, using)
    schedule.check_options()  # also the cron line, which send_due() reads before it sends

    def work() -> Job | None:
        if confirmation is not None:
            # Calls with one confirmation take turns. Others lock nothing: their transactions may be long.
            Schedule.objects.using(using).select_for_update(no_key=True).filter(pk=schedule.pk).first()
            recorded = Operation.objects.using(using).filter(confirmation=confirmation).first()
            if recorded is not None:
                return Job.objects.using(using).filter(pk__in=recorded.selection["ids"]).first()
        job = _send(schedule, using)
        _record_by_hand(schedule, job, using)
        moved = [] if job is None else [job.pk]
        keep_record("run_schedule", note, using, queue=schedule.queue_id, schedule=schedule.pk, moved=moved,
                    confirmation=confirmation)  # fmt: skip
        return job

    return in_transaction(using, work)


def switch_schedule(
    name: str, *, enabled: bool, operator: str = "", reason: str = "", using: str | None = None
) -> bool:
    """Turn a schedule on or off, and return whether that changed it.

    With an ``operator`` or a ``reason`` the change is recorded as an ``Operation``. Raises ``ScheduleNotFound``.
    """
    using, note = database(using), noted(operator, reason)
    schedule = _get(name, using)
    with transaction.atomic(using=using):
        changed = Schedule.objects.using(using).filter(pk=schedule.pk, enabled=not enabled).update(enabled=enabled)
        if changed:
            _record(schedule.pk, {"enabled": not enabled}, {"enabled": enabled}, note, using)
    return bool(changed)


def delete_schedule(name: str, *, operator: str = "", reason: str = "", using: str | None = None) -> None:
    """Delete a schedule; the jobs that it sent stay.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``. Raises ``ScheduleNotFound``.
    """
    using, note = database(using), noted(operator, reason)
    schedule = _get(name, using)
    with transaction.atomic(using=using):
        keep_record("delete_schedule", note, using, schedule=schedule.name)
        schedule.delete(using=using)


def record_edit(before: Schedule | None, after: Schedule, *, operator: str, reason: str, using: str) -> None:
    """Record that an operator created a schedule, without ``before``, or which of its fields the operator changed."""
    columns = [
        field.attname
        for field in after._meta.concrete_fields
        if field.name in {*REQUIRED_OF_SCHEDULES, *schedule_defaults()}
    ]
    was, now = ({name: getattr(row, name) for name in columns} if row else None for row in (before, after))
    _record(after.name, was, now or {}, noted(operator, reason), using)


def _record(name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any], note: Note, using: str) -> None:
    changed = changes(before or {}, after)
    if before is None or changed:
        verb = "create_schedule" if before is None else "update_schedule"
        keep_record(verb, note, using, schedule=name, details=changed)


def send_due(*, limit: int = 100, using: str | None = None) -> int:
    """Send the jobs of all slots that are due, of up to ``limit`` schedules, and return the number of jobs.

    Any number of processes may call this at once; each slot is sent by only one of them. Each schedule has its own
    transaction. A schedule that fails is logged and does not stop the others.
    """
    using = database(using)
    limit = check_int(limit, option="limit", minimum=1, maximum=10_000)
    due = troubled.left_out(Schedule.objects.using(using).due(), using).order_by("next_at")
    try:
        return sum(_handle(name, using) for name in due.values_list("pk", flat=True)[:limit])
    except DatabaseError as error:
        explain(error, using)
        raise


def forget_old_runs(*, days: int = RUN_DAYS, limit: int = 10_000, using: str | None = None) -> int:
    """Delete up to ``limit`` records of slots that are older than ``days``, and return their number."""
    days = check_int(days, option="days", minimum=1, maximum=36_500)
    limit = check_int(limit, option="limit", minimum=1, maximum=1_000_000)
    return execute(database(using), sql.schedules.FORGET_RUNS, [days, limit, limit])


def sync_declared_schedules(*, using: str) -> None:
    """Create or change the schedules that the settings declare; turn off those that are no longer declared.

    The declaration decides whether a schedule is on only when the schedule is created or declared again. Later,
    operators decide.
    """
    if not has_table(Schedule, using):
        return
    declared = get_settings().SCHEDULES
    ours = set(Schedule.objects.using(using).filter(from_code=True).values_list("pk", flat=True))
    with transaction.atomic(using=using):
        for name, options in declared.items():
            _declare(check_schedule_name(name), options, name in ours, using)
        gone = Schedule.objects.using(using).filter(pk__in=ours - declared.keys())
        gone.update(enabled=False, from_code=False)


def _declare(name: str, options: Mapping[str, Any], is_ours: bool, using: str) -> None:
    for option in REQUIRED_OF_SCHEDULES:
        if option not in options:
            raise InvalidOption(option, f"JOBQUEUE['SCHEDULES'][{name!r}] does not give it")
    given = dict(options)
    if is_ours:
        given.pop("enabled", None)
    else:
        given.setdefault("enabled", True)
    _put(name, given, {}, noted(""), using)
    Schedule.objects.using(using).filter(pk=name, from_code=False).update(from_code=True)


# -------------------------------------------------------------------------------------------------- creating schedules


def _put(name: str, given: Mapping[str, Any], options: Mapping[str, Any], note: Note, using: str) -> Schedule:
    columns = schedule_defaults() | clean_schedule_options({**given, **options})
    if "enabled" not in given:  # an existing schedule stays on or off
        del columns["enabled"]
    _check_queue(columns, using)
    columns["queue_id"] = columns.pop("queue")
    with transaction.atomic(using=using):
        manager = Schedule.objects.db_manager(using)
        schedule, is_new = manager.select_for_update(no_key=True).get_or_create(name=name, defaults=columns)
        changed = {column: value for column, value in columns.items() if getattr(schedule, column) != value}
        before = None if is_new else {column: getattr(schedule, column) for column in columns}
        if not is_new and changed:
            for column, value in {**changed, "updated_at": StatementTimestamp()}.items():
                setattr(schedule, column, value)
            schedule.save(using=using, update_fields=[*changed, "updated_at"])
        _record(name, before, columns, note, using)
    return manager.get(pk=name)


def _check_queue(columns: Mapping[str, Any], using: str) -> None:
    queue = check_exists(columns["queue"], using)
    if queue.is_ordered and not columns["singleton_key"]:
        raise KeyRequired(queue.name)


def _get(name: object, using: str) -> Schedule:
    name = check_text(name, option="name", max_length=1_000_000, required=True)
    schedules = Schedule.objects.using(using)
    schedule = schedules.filter(pk=name).first()
    if schedule is None:
        raise ScheduleNotFound(name, schedules.values_list("pk", flat=True)[:1000])
    return schedule


# ------------------------------------------------------------------------------------------------------- due slots


def _handle(name: str, using: str) -> int:
    """Send the due slots of one schedule in its own transaction; a failure is logged and does not stop the others."""
    try:
        sent = unless_locked(using, partial(_tick, name, using), LOCK_SECONDS)
    except (OperationalError, InterfaceError):  # the database failed, not the schedule
        raise
    except Exception as error:
        troubled.set_aside(name, using, LOOK_AGAIN_SECONDS)
        logger.error(
            "schedule failed: %s: %s; trying again in %g s",
            name,
            error_line(error),
            LOOK_AGAIN_SECONDS,
            extra={"schedule": name, "error": error_text(error), "seconds": LOOK_AGAIN_SECONDS},
            exc_info=error,
        )
        return 0
    if sent is None:  # an open transaction has sent a job that would refuse this one, and may still roll back
        troubled.set_aside(name, using, AFTER_LOCK_SECONDS)
        logger.info(
            "schedule waits for another transaction: %s; trying again in %g s",
            name,
            AFTER_LOCK_SECONDS,
            extra={"schedule": name, "seconds": AFTER_LOCK_SECONDS},
        )
        return 0
    return sent


def _tick(name: str, using: str) -> int:
    """Send the due slots, unless another process is sending them or has sent them."""
    mine = Schedule.objects.using(using).due().select_for_update(skip_locked=True, no_key=True)
    schedule = mine.annotate(now=StatementTimestamp()).filter(pk=name).first()
    if schedule is None:
        return 0
    now: datetime = schedule.now.astimezone(UTC)  # type: ignore[attr-defined]
    try:
        following = first_slot(schedule.cron, schedule.timezone, now)
    except InvalidOption as error:
        troubled.set_aside(name, using, LOOK_AGAIN_SECONDS, schedule)
        logger.error(
            "schedule cannot be read: %s, cron %r, time zone %r: %s",
            name,
            schedule.cron,
            schedule.timezone,
            error_line(error),
            extra={"schedule": name, "cron": schedule.cron, "timezone": schedule.timezone, "error": error_text(error)},
            exc_info=error,
        )
        return 0
    slots = _slots_to_send(schedule, now)
    jobs = [_send_slot(schedule, slot, using) for slot in slots]
    last = {"last_slot": slots[-1]} if slots else {}
    Schedule.objects.using(using).filter(pk=name).update(next_at=following, **last)
    return sum(jobs)


def _slots_to_send(schedule: Schedule, now: datetime) -> list[datetime]:
    """The slots since ``next_at`` that its ``catch_up`` includes, the earliest first."""
    if schedule.next_at is None:  # it was created, changed or turned on again: it begins now
        return []
    before = schedule.next_at - timedelta(microseconds=1)
    count = MAX_CATCH_UP if schedule.catch_up == CatchUp.ALL else 1
    due = latest_slots(schedule.cron, schedule.timezone, before, now, count + 1)
    kept = [slot for slot in due[-count:] if schedule.catch_up != CatchUp.NONE or now - slot <= LATE]
    if len(kept) < len(due):
        first = str(schedule.next_at)
        logger.warning(
            "schedule missed slots: %s since %s, catch_up=%s",
            schedule.name,
            first,
            schedule.catch_up,
            extra={"schedule": schedule.name, "since": first, "catch_up": schedule.catch_up},
        )
    return kept


def _send_slot(schedule: Schedule, slot: datetime, using: str) -> bool:
    """Record a slot, and send its job if no other process has; return whether a job was sent."""
    run, is_new = ScheduleRun.objects.using(using).get_or_create(schedule=schedule, slot=slot)
    if not is_new or _is_paused(schedule, using):
        return False
    try:
        job = _send(schedule, using)
    except JobQueueError as error:  # raised before any SQL, or after some that changed nothing
        logger.error(
            "schedule could not send its job: %s to queue %s: %s",
            schedule.name,
            schedule.queue_id,
            error_line(error),
            extra={"schedule": schedule.name, "queue": schedule.queue_id, "error": error_text(error)},
            exc_info=error,
        )
        return False
    if job is None:
        logger.info(
            "schedule sent no job: %s: the policy of queue %s allows no other job now",
            schedule.name,
            schedule.queue_id,
            extra={"schedule": schedule.name, "queue": schedule.queue_id},
        )
        return False
    ScheduleRun.objects.using(using).filter(pk=run.pk).update(job_id=job.pk)
    return True


def _is_paused(schedule: Schedule, using: str) -> bool:
    paused = Queue.objects.using(using).paused().filter(pk=schedule.queue_id).exists()
    if paused:
        logger.info(
            "schedule sent no job: %s: queue %s is paused",
            schedule.name,
            schedule.queue_id,
            extra={"schedule": schedule.name, "queue": schedule.queue_id},
        )
    return paused


def _send(schedule: Schedule, using: str) -> Job | None:
    job: Job | None = send(
        schedule.queue_id,
        schedule.data,
        name=schedule.handler,
        singleton_key=schedule.singleton_key,
        group_key=schedule.group_key,
        priority=schedule.priority,
        tags=schedule.tags,
        using=using,
        **schedule.job_options(),
    )
    return job


def _record_by_hand(schedule: Schedule, job: Job | None, using: str) -> None:
    """Record a run by hand; its slot is the current time, with microseconds that no slot of a cron line has."""
    slot: datetime = rows(using, sql.session.MOMENT)[0][0]
    runs = ScheduleRun.objects.using(using)
    is_new = False
    while not is_new:
        slot += timedelta(microseconds=1)
        if slot.microsecond:
            values = {"job_id": job.pk if job else None, "by_hand": True}
            _, is_new = runs.get_or_create(schedule=schedule, slot=slot, defaults=values)


# -------------------------------------------------------------------------------------------------- broken schedules


class _Trouble(NamedTuple):
    """Why a schedule is left out, and until when: the cron line and time zone that could not be read, or neither."""

    cron: str | None
    timezone: str | None
    until: float  # monotonic time


class TroubledSchedules(ProcessMemory):
    """Schedules that this process could not handle, left out for seconds or a minute.

    Their rows are not changed, because another worker may know a time zone that this one does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._troubles: dict[tuple[str, str], _Trouble] = {}

    def set_aside(self, name: str, using: str, seconds: float, schedule: Schedule | None = None) -> None:
        cron, timezone = (schedule.cron, schedule.timezone) if schedule else (None, None)
        self._troubles[using, name] = _Trouble(cron, timezone, time.monotonic() + seconds)

    def left_out(self, schedules: ScheduleQuerySet, using: str) -> ScheduleQuerySet:
        """These schedules without the troubled ones; one that could not be read is included again once it changed."""
        now = time.monotonic()
        for (alias, name), (cron, timezone, until) in list(self._troubles.items()):
            if until <= now:
                self._troubles.pop((alias, name), None)
            elif alias == using:
                same = Q(pk=name) if cron is None else Q(pk=name, cron=cron, timezone=timezone)
                schedules = schedules.exclude(same)
        return schedules

    def forget(self) -> None:
        self._troubles.clear()


troubled = TroubledSchedules()
