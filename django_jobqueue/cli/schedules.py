"""The subcommand ``schedules``."""

from __future__ import annotations

from typing import Any

from django.core.management.color import Style

from ..exceptions import InvalidOption
from ..models import Schedule
from ..services.queues import find_queue
from .answers import Answer, table


def schedules(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Every schedule: its cron line in English, and its next slots in its own time zone."""
    if options["next"] < 1 or options["next"] > 100:
        raise InvalidOption("next", f"expected 1 to 100, got {options['next']}")
    stored = Schedule.objects.using(using).order_by("name")
    if options["queue"] is not None:
        stored = stored.filter(queue=find_queue(options["queue"], using).name)
    listed = [_schedule(schedule, options["next"]) for schedule in stored]
    if not listed:
        return Answer({"schedules": []}, "There are no schedules.")
    head = ("name", "queue", "enabled", "cron", "meaning", "last slot", "next slots")
    rows = [
        [schedule["name"], schedule["queue"], schedule["enabled"], schedule["cron"],
         schedule["problem"] or schedule["description"], schedule["last_slot"], ", ".join(schedule["next_slots"])]
        for schedule in listed
    ]  # fmt: skip
    return Answer({"schedules": listed}, table(head, rows, style))


def _schedule(schedule: Schedule, count: int) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "queue": schedule.queue_id,
        "handler": schedule.handler,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "enabled": schedule.enabled,
        "description": schedule.description,
        "problem": schedule.problem,
        "last_slot": schedule.last_slot,
        "next_at": schedule.next_at,
        "next_slots": [slot.isoformat(timespec="minutes") for slot in schedule.next_slots(count)],
    }
