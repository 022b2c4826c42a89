"""Maintenance, old finished jobs, stranded lanes and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db.models import Prefetch, Q

from .. import handlers
from ..conf import get_settings
from ..engine.databases import rows
from ..expressions import StatementTimestamp
from ..models import Alert, Maintenance, Queue, Schedule, Worker
from ..partitions import DEFAULT, leaf_of
from ..services.inspect import health
from .findings import Finding, Level, Limits, ago, counted
from .work import CAP, MAINTAIN

LOOK_SECONDS = 2

# ----------------------------------------------------------------------------------------------------- maintenance


def maintenance(using: str, limits: Limits) -> Iterator[Finding]:
    """Whether maintenance ran recently, and whether all of its steps succeeded."""
    last: Any = Maintenance.objects.using(using).annotate(now=StatementTimestamp()).first()
    late = max(limits.overdue_seconds, 5 * get_settings().MONITOR_SECONDS)
    now = StatementTimestamp()
    lost = timedelta(seconds=get_settings().WORKER_LOST_SECONDS)
    workers = Worker.objects.using(using).filter(
        stopped_at=None, heartbeat_at__gt=now - lost, started_at__lt=now - timedelta(seconds=late)
    )
    age = (last.now - last.began_at).total_seconds() if last is not None and last.began_at else None
    if (age is None or age > late) and workers.exists():
        when = "never" if age is None else f"{ago(age)} ago"
        yield Finding(
            "maintenance_late",
            Level.WARNING,
            "Workers are alive, but maintenance does not run",
            f"The last pass was {when}. Overdue jobs are not expired, and old jobs are not deleted.",
            MAINTAIN,
            {"seconds": age},
            using,
        )
    for step in last.report.get("steps", ()) if last is not None else ():
        if step.get("error"):
            yield Finding(
                "maintenance_failed",
                Level.WARNING,
                f"The step {step['name']!r} of the last maintenance failed",
                str(step["error"]),
                f"Run {MAINTAIN} and read its error; the log of django_jobqueue has the traceback.",
                {"step": step["name"], "error": step["error"]},
                using,
            )


def undelivered_alerts(using: str, limits: Limits) -> Iterator[Finding]:
    """Alerts of which operators could not be told."""
    failing = Alert.objects.using(using).filter(failures__gt=0).order_by("-failures", "channel")
    seen: set[str] = set()
    for alert in failing[:CAP]:
        if alert.channel in seen:
            continue
        seen.add(alert.channel)
        number = failing.filter(channel=alert.channel).count()
        yield Finding(
            "alert_undelivered",
            Level.ERROR,
            f"{counted(number, 'alert')} could not be delivered by {alert.channel}",
            f"The last of {counted(alert.failures, 'attempt')} failed: {alert.error}.",
            "Correct JOBQUEUE['ALERTS'] or the mail settings, then run manage.py jobs alerts --test",
            {"channel": alert.channel, "alerts": number, "failures": alert.failures, "error": alert.error},
            using,
        )


# --------------------------------------------------------------------------------------------------- finished jobs


def finished_jobs(using: str, limits: Limits) -> Iterator[Finding]:
    """Finished jobs that should have been deleted: the archive does not run, or cleanup does not."""
    archive = get_settings().ARCHIVE
    undeleted = health.undeleted_jobs(seconds=limits.uncleaned_seconds, most=CAP, using=using)
    for queue, number, age in undeleted:
        facts = {"queue": queue, "jobs": number, "seconds": age}
        if archive:
            yield Finding(
                "not_archived",
                Level.WARNING,
                f"{counted(number, 'finished job', most=CAP)} of {queue!r} not archived",
                f"JOBQUEUE['ARCHIVE'] is on, so cleanup keeps them. The oldest is overdue by {ago(age)}.",
                "Run the archive, or set JOBQUEUE['ARCHIVE'] = False.",
                facts,
                using,
            )
        else:
            yield Finding(
                "not_cleaned_up",
                Level.WARNING,
                f"{counted(number, 'finished job', most=CAP)} of {queue!r} not cleaned up",
                f"The oldest is overdue by {ago(age)}: no worker runs maintenance, or it does not keep up.",
                MAINTAIN,
                facts,
                using,
            )


def kept_forever(using: str, limits: Limits) -> Iterator[Finding]:
    """Large queues that delete no finished jobs, by the server's estimate of their partition."""
    sizes = dict(
        rows(
            using,
            "SELECT c.relname, c.reltuples::bigint FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid "
            "WHERE h.inhparent = 'jobqueue_job'::regclass",
        )
    )
    keeping = Queue.objects.using(using).filter(Q(delete_after_seconds=0)).order_by("name")
    for name, partition in keeping.values_list("name", "partition"):
        leaf = leaf_of(name, partition)
        size = max(sizes.get(leaf, 0), 0)
        if size >= limits.kept_rows:
            shared = ", shared with other queues" if leaf == DEFAULT else ""
            yield Finding(
                "kept_forever",
                Level.NOTICE,
                f"{name!r} never deletes finished jobs",
                f"delete_after_seconds is 0, and its partition has about {size:,} rows{shared}.",
                f"update_queue({name!r}, delete_after_seconds=…) for new jobs; manage.py jobs purge {name} "
                "--state completed for the old ones",
                {"queue": name, "rows": size, "table": leaf},
                using,
            )


# ------------------------------------------------------------------------------------------------ lanes and schedules


def stranded_lanes(using: str, limits: Limits) -> Iterator[Finding]:
    """Stranded lanes. They are searched twice, because a large purge releases lanes only after its commit."""
    first, is_complete = health.stranded_lanes(seconds=LOOK_SECONDS, using=using)
    again = health.stranded_lanes(seconds=LOOK_SECONDS, using=using).lanes if first else set()
    stranded = sorted(first & again)
    if not is_complete:
        yield Finding(
            "not_looked",
            Level.NOTICE,
            "There are too many lanes to check all of them",
            f"They were checked for {LOOK_SECONDS} s. Maintenance checks all of them, some in each pass.",
            MAINTAIN,
            {"look": "stranded_lanes"},
            using,
        )
    if stranded:
        keys = [f"{lane.queue} {lane.key!r}" for lane in stranded[: limits.listed]]
        yield Finding(
            "stranded_lanes",
            Level.ERROR,
            f"{counted(len(stranded), 'stranded lane')}",
            f"{'; '.join(keys)}. Jobs in these lanes are held although no job is ahead of them. This is a bug: please "
            "report it. Maintenance releases stranded lanes too.",
            "manage.py jobs doctor --fix",
            {"lanes": [{"queue": lane.queue, "key": lane.key} for lane in stranded[:CAP]]},
            using,
            repairs_lanes=True,
        )


def schedules(using: str, limits: Limits) -> Iterator[Finding]:
    enabled: Any = Schedule.objects.using(using).enabled().annotate(now=StatementTimestamp()).order_by("name")
    queues = Prefetch("queue", Queue.objects.using(using))  # not those of a replica
    for schedule in enabled.prefetch_related(queues)[:CAP]:
        problem = schedule.problem or _without_handler(schedule)
        late = (schedule.now - schedule.next_at).total_seconds() if schedule.next_at else 0.0
        if problem:
            yield Finding(
                "schedule_broken",
                Level.ERROR,
                f"The schedule {schedule.name!r} cannot send jobs, or its jobs have no handler",
                problem,
                "Correct it in the admin or in JOBQUEUE['SCHEDULES'], or disable it.",
                {"schedule": schedule.name, "problem": problem},
                using,
            )
        elif late > limits.overdue_seconds:
            yield Finding(
                "schedule_late",
                Level.WARNING,
                f"The schedule {schedule.name!r} is late by {ago(late)}",
                "No process sends its jobs: no worker is alive, or all run with --no-schedules.",
                "manage.py runjobs",
                {"schedule": schedule.name, "seconds": late},
                using,
            )


def _without_handler(schedule: Schedule) -> str:
    """Why its jobs have no handler; empty if they have one, or if this process cannot import the handlers."""
    queue, name = schedule.queue_id, schedule.handler
    if not name or handlers.find(queue, name):
        return ""
    find = handlers.discovered()  # a web process may not have imported them yet
    return handlers.missing_text(queue, name) if find and find(queue, name) is None else ""


LOOKS = (maintenance, undelivered_alerts, finished_jobs, kept_forever, schedules)
