from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from django_jobqueue.models import Schedule, ScheduleRun


def test_a_schedule_with_a_cron_expression_can_be_stored(queue):  # R326
    Schedule.objects.create(name="nightly", queue=queue, cron="0 3 * * *", data={"n": 1}, timezone="Europe/Zurich")

    schedule = Schedule.objects.get(pk="nightly")
    assert (schedule.queue, schedule.cron, schedule.timezone) == (queue, "0 3 * * *", "Europe/Zurich")
    assert (schedule.data, schedule.enabled, schedule.priority) == ({"n": 1}, True, 0)


def test_a_slot_of_a_schedule_is_run_once(queue):
    schedule = Schedule.objects.create(name="nightly", queue=queue, cron="0 3 * * *")
    slot = timezone.now()
    ScheduleRun.objects.create(schedule=schedule, slot=slot)

    with pytest.raises(IntegrityError, match="one_per_slot"), transaction.atomic():
        ScheduleRun.objects.create(schedule=schedule, slot=slot)


def test_schedules_can_be_chosen_by_queue_and_by_whether_they_run(queue, fifo_queue):
    on = Schedule.objects.create(name="on", queue=queue, cron="* * * * *")
    Schedule.objects.create(name="off", queue=queue, cron="* * * * *", enabled=False)
    Schedule.objects.create(name="other", queue=fifo_queue, cron="* * * * *")

    assert list(Schedule.objects.of_queue(queue.name).enabled()) == [on]
