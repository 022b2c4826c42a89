"""Schedules that are changed while they run, by every way there is, and schedules that are broken."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.forms import modelform_factory

from django_jobqueue import cron, services
from django_jobqueue.exceptions import InvalidOption, ScheduleNotFound
from django_jobqueue.models import Operation, Schedule
from django_jobqueue.services import schedules

from .lives import refused
from .timetables import database_now, due, edit_by_hand, jobs, line_of, missed, runs, slots_ago, stored

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_trouble() -> None:
    schedules.troubled.forget()


def first_slot(line: str, zone: str = "UTC") -> Any:
    return next(cron.slots_after(line, zone, database_now()))


# ---------------------------------------------------------------------------------------------- when it is due next


def by_save(**values: Any) -> None:
    schedule = stored("nightly")
    for name, value in values.items():
        setattr(schedule, name, value)
    schedule.save()


def by_save_of_fields(**values: Any) -> None:
    schedule = stored("nightly")
    for name, value in values.items():
        setattr(schedule, name, value)
    schedule.save(update_fields=list(values))


def by_update(**values: Any) -> None:
    Schedule.objects.filter(pk="nightly").update(**values)


def by_bulk_update(**values: Any) -> None:
    schedule = stored("nightly")
    for name, value in values.items():
        setattr(schedule, name, value)
    Schedule.objects.bulk_update([schedule], list(values))


def by_verb(**values: Any) -> None:
    schedule = stored("nightly")
    services.create_schedule("nightly", "work", **{"cron": schedule.cron, "timezone": schedule.timezone} | values)


EDITS: dict[str, Callable[..., None]] = {
    "save": by_save,
    "save of fields": by_save_of_fields,
    "update": by_update,
    "bulk_update": by_bulk_update,
    "create_schedule": by_verb,
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(
    "values", ({"cron": "17 3 * * *"}, {"timezone": "Asia/Kolkata"}, {"cron": "@hourly", "timezone": "Asia/Kathmandu"})
)
def test_an_edit_decides_anew_when_a_schedule_is_due(queue, edit, values):  # R367
    services.create_schedule("nightly", "work", "30 2 * * *")

    EDITS[edit](**values)
    assert services.send_due() == 0

    schedule = stored("nightly")
    assert schedule.next_at == first_slot(schedule.cron, schedule.timezone)
    assert values.items() <= vars(schedule).items()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_sends_nothing_for_the_time_before_it(queue, edit):  # R367
    due("nightly", "work")
    other = line_of(slots_ago(40, 25))

    EDITS[edit](cron=other)

    assert services.send_due() == 0
    assert (jobs("work"), stored("nightly").next_at) == ([], first_slot(other))


@pytest.mark.parametrize("edit", EDITS)
def test_a_schedule_turned_on_again_sends_nothing_for_the_time_it_was_off(queue, edit):  # R370
    schedule = due("nightly", "work", catch_up="all")

    EDITS[edit](enabled=False)
    assert (stored("nightly").next_at, services.send_due()) == (None, 0)
    EDITS[edit](enabled=True)

    assert services.send_due() == 0
    assert stored("nightly").next_at == first_slot(schedule.cron)
    assert (jobs("work"), runs("nightly")) == ([], [])


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_something_else_loses_no_slot(queue, edit):  # G9
    _, [slot] = missed("nightly", "work", 5)

    EDITS[edit](priority=3)
    assert stored("nightly").next_at == slot
    EDITS[edit](enabled=True)  # as it was

    assert services.send_due() == 1
    assert [run.slot for run in runs("nightly")] == [slot]


def test_saving_an_object_loaded_before_a_tick_does_not_undo_the_tick(queue):  # G9
    _, [slot] = missed("nightly", "work", 5)
    loaded = stored("nightly")
    services.send_due()

    loaded.data = {"n": 1}
    loaded.save()

    assert loaded.next_at == stored("nightly").next_at == slot + timedelta(hours=1)
    assert (stored("nightly").last_slot, stored("nightly").data) == (slot, {"n": 1})


def test_saving_an_object_loaded_before_anothers_edit_decides_anew(queue):  # R367
    services.create_schedule("nightly", "work", "30 2 * * *")
    loaded = stored("nightly")
    by_save(cron="@hourly")

    loaded.data = {"n": 1}
    loaded.save()  # which also writes the line that it knows

    assert stored("nightly").cron == "30 2 * * *"
    assert stored("nightly").next_at == first_slot("30 2 * * *")


def test_a_schedule_made_past_the_verbs_is_due_from_the_next_pass_on(queue):  # R367
    Schedule.objects.bulk_create([Schedule(name="bulk", queue=queue, cron="@hourly")])
    Schedule.objects.create(name="saved", queue=queue, cron=" 0  *  * * * ")

    assert stored("saved").next_at == first_slot("@hourly")
    assert services.send_due() == 0
    assert stored("bulk").next_at == first_slot("@hourly")


def test_a_slot_that_a_new_zone_file_moved_is_not_sent_at_the_old_time(queue):  # F45
    services.create_schedule("nightly", "work", line_of(slots_ago(20)))
    edit_by_hand("nightly", next_at=slots_ago(10)[0])

    assert services.send_due() == 0
    assert (jobs("work"), stored("nightly").next_at) == ([], first_slot(stored("nightly").cron))


def test_saving_refuses_what_makes_no_sense_or_never_fires(queue):  # F46
    services.create_schedule("nightly", "work", "@daily")

    for values in ({"cron": "nope"}, {"cron": "0 0 30 2 *"}, {"timezone": "Mars"}):
        with refused(InvalidOption):
            by_save(**values)
    with refused(InvalidOption):
        Schedule.objects.create(name="other", queue=queue, cron="61 * * * *")
    assert stored("nightly").cron == "@daily"


def test_a_broken_schedule_can_be_turned_off(queue):  # R370
    services.create_schedule("nightly", "work", "@daily")
    edit_by_hand("nightly", cron="nope")

    by_save(enabled=False)

    assert (stored("nightly").enabled, stored("nightly").next_at) == (False, None)


# ------------------------------------------------------------------------------------------------------- in a form


def form(**values: Any) -> Any:
    given = {"name": "nightly", "queue": "work", "cron": "@daily", "timezone": "UTC", "priority": 0, "catch_up": "last",
             "enabled": True, "options": "{}", "data": "null"}  # fmt: skip
    return modelform_factory(Schedule, fields="__all__")(given | values)


@pytest.mark.parametrize(
    ("field", "values", "told"),
    (
        ("cron", {"cron": "0 0 30 2 *"}, "never fires"),
        ("cron", {"cron": "61 * * * *"}, "'61' is not a valid minute"),
        ("timezone", {"timezone": "Europe/Berln"}, "Did you mean 'Europe/Berlin'?"),
        ("options", {"options": '{"retry_limt": 1}'}, "Did you mean 'retry_limit'?"),
        ("options", {"options": '{"cron": "@daily"}'}, "not an option of jobs"),
        ("options", {"options": "[1]"}, "expected a dict"),
        ("data", {"data": json.dumps("x" * 300_000)}, "the limit is"),
        ("singleton_key", {"queue": "orders"}, "require a singleton_key"),
        ("tags", {"tags": "a," + "x" * 200}, "the limit is 100"),
        ("queue", {"queue": "gone"}, "valid choice"),
    ),
)
def test_a_form_refuses_what_the_verb_refuses_beside_the_field(queue, fifo_queue, field, values, told):  # R315
    wrong = form(**values)

    assert not wrong.is_valid()
    assert list(wrong.errors) == [field]
    assert told in str(wrong.errors[field].as_data())


def test_a_form_makes_a_schedule(queue):  # R367
    right = form(cron="30 2 * * *", timezone="Europe/Berlin", tags="a,b", options='{"retry_limit": 1}')
    assert right.is_valid(), right.errors

    right.save()

    schedule = stored("nightly")
    assert (schedule.tags, schedule.options, schedule.problem) == (["a", "b"], {"retry_limit": 1}, "")
    assert schedule.next_at == first_slot("30 2 * * *", "Europe/Berlin")


# -------------------------------------------------------------------------------------------------- broken schedules


@pytest.mark.parametrize(
    ("broken", "told"),
    (
        ({"cron": "nope"}, "expected five fields"),
        ({"cron": "0 0 30 2 *"}, "never fires"),
        ({"timezone": "Mars"}, "there is no time zone named 'Mars'"),
    ),
)
@pytest.mark.parametrize("known", (True, False))
def test_a_schedule_that_cannot_be_read_is_told_once_and_stops_no_other(queue, caplog, broken, told, known):
    due("broken", "work")
    due("fine", "work")
    edit_by_hand("broken", **broken | ({} if known else {"next_at": None}))
    before = Schedule.objects.values().get(pk="broken")

    assert services.send_due() == 1
    assert services.send_due() == services.send_due() == 0  # it does not spin

    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.schedule == "broken"
    assert told in record.error
    assert Schedule.objects.values().get(pk="broken") == before  # and stays to be seen
    assert told in stored("broken").problem
    assert stored("broken").description == stored("broken").cron
    assert stored("broken").next_slots() == []
    assert stored("fine").problem == ""


def test_broken_schedules_do_not_fill_a_pass(queue):
    for n in range(3):
        due(f"broken {n}", "work")
        edit_by_hand(f"broken {n}", cron="nope", next_at=slots_ago(60)[0])
    due("fine", "work")

    assert [services.send_due(limit=3), services.send_due(limit=3)] == [0, 1]


def test_a_schedule_that_was_mended_goes_on_at_once(queue):
    schedule, [slot] = missed("nightly", "work", 5)
    edit_by_hand("nightly", cron="nope")
    assert services.send_due() == 0

    edit_by_hand("nightly", cron=schedule.cron)

    assert services.send_due() == 1  # the slot was not lost
    assert [run.slot for run in runs("nightly")] == [slot]


def drop_queue(queue: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobqueue_queue WHERE name = %s", [queue])


@pytest.mark.parametrize(
    ("broken", "told"),
    (
        (lambda: drop_queue("gone"), "There is no queue named 'gone'"),
        (lambda: edit_by_hand("broken", data=json.dumps("x" * 300_000)), "the limit is 262,144"),
        (lambda: edit_by_hand("broken", options="[1]"), "expected a dict"),
        (lambda: edit_by_hand("broken", options='{"retry_limit": -1}'), "retry_limit: must be at least 0"),
        (lambda: edit_by_hand("broken", options='{"queue": "work"}'), "not an option of jobs"),
        (lambda: edit_by_hand("broken", queue_id="orders"), "require a singleton_key"),
    ),
)
def test_a_job_that_is_refused_is_told_and_its_slot_recorded(queue, fifo_queue, caplog, broken, told):  # R369
    services.create_queue("gone")
    _, [slot] = missed("broken", "gone", 5)
    due("fine", "work")
    broken()

    assert services.send_due() == 1

    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (record.schedule, told in record.error) == ("broken", True)
    assert [(run.slot, run.job_id) for run in runs("broken")] == [(slot, None)]
    assert stored("broken").next_at == slot + timedelta(hours=1)  # it does not spin
    assert told in stored("broken").problem
    assert len(jobs("work")) == 1


@pytest.mark.django_db(transaction=True)
def test_an_error_that_nobody_foresaw_stops_no_other(queue, caplog):
    missed("broken", "work", 5, data={"kind": "broken"})
    due("fine", "work")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobqueue_job ADD CONSTRAINT no_broken CHECK (data->>'kind' <> 'broken') NOT VALID")
    try:
        assert [services.send_due(), services.send_due()] == [1, 0]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE jobqueue_job DROP CONSTRAINT no_broken")

    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (record.schedule, "no_broken" in record.error) == ("broken", True)
    schedules.troubled.forget()  # a minute later
    assert services.send_due() == 1  # the slot was not lost


@pytest.mark.parametrize("edit", (services.delete_schedule, partial(services.switch_schedule, enabled=False)))
def test_a_schedule_that_does_not_exist_is_an_error_and_leaves_no_record(edit):
    with pytest.raises(ScheduleNotFound, match="'gone'"):
        edit("gone", operator="ada", reason="it was wrong")

    assert not Operation.objects.exists()
