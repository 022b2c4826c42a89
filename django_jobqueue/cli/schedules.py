"""The subcommand ``schedules``."""

from __future__ import annotations

from typing import Any

from django.core.management.color import Style

from ..exceptions import InvalidOption
from ..models import Schedule
from ..services.queues import find_queue
from .answers import Answer, table


def schedules(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Every schedule: what it says in English, and when it is due next, each slot by the clock of its zone."""
    if options["next"] < 1 or options["next"] > 100:
        raise InvalidOption("next", f"expected 1 to 100, got {options['next']}")
    found = Schedule.objects.using(using).order_by("name")
    if options["queue"] is not None:
        found = found.filter(queue=find_queue(options["queue"], using).name)
    told = [_schedule(schedule, options["next"]) for schedule in found]
    if not told:
        return Answer({"schedules": []}, "No schedules.")
    head = ("name", "queue", "enabled", "cron", "what it says", "last slot", "next slots")
    rows = [
        [one["name"], one["queue"], one["enabled"], one["cron"], one["problem"] or one["description"],
         one["last_slot"], ", ".join(one["next_slots"])]
        for one in told
    ]  # fmt: skip
    return Answer({"schedules": told}, table(head, rows, style))


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
