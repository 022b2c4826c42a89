"""Schedules whose slots lie where a test needs them, because clocks are not frozen and tests do not sleep."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from django_jobqueue import services
from django_jobqueue.models import Job, Schedule, ScheduleRun


def database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        found: datetime = cursor.fetchone()[0]
    return found


def slots_ago(*minutes: int) -> list[datetime]:
    """The whole minutes that long ago, and never one close to now, so that no slot comes while a test runs."""
    now = database_now().replace(second=0, microsecond=0)
    return [now - timedelta(minutes=number) for number in minutes]


def line_of(slots: list[datetime]) -> str:
    """A line that is due at these minutes of every hour."""
    return f"{','.join(str(slot.minute) for slot in slots)} * * * *"


def missed(name: str, queue: str, *minutes: int, **options: Any) -> tuple[Schedule, list[datetime]]:
    """A schedule that was due that many minutes ago while no scheduler ran, and these slots."""
    slots = slots_ago(*minutes)
    services.create_schedule(name, queue, line_of(slots), **options)
    Schedule.objects.filter(pk=name).update(next_at=slots[0])
    return stored(name), slots


def due(name: str, queue: str, **options: Any) -> Schedule:
    """A schedule with one slot that is due."""
    return missed(name, queue, 5, **options)[0]


def stored(name: str) -> Schedule:
    return Schedule.objects.get(pk=name)


def runs(name: str) -> list[ScheduleRun]:
    return list(ScheduleRun.objects.filter(schedule=name).order_by("slot"))


def recorded(name: str) -> list[datetime]:
    return [run.slot for run in runs(name)]


def jobs(queue: str) -> list[Job]:
    return list(Job.objects.in_queue(queue).order_by("seq"))


def edit_by_hand(name: str, **columns: Any) -> None:
    """Change columns as psql would, past everything in Python."""
    changes = ", ".join(f"{column} = %s" for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE jobqueue_schedule SET {changes} WHERE name = %s", [*columns.values(), name])
