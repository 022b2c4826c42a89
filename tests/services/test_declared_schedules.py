"""Schedules that settings declare."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, QueueNotFound
from django_jobqueue.models import Schedule
from django_jobqueue.services.schedules import sync_declared_schedules

from .timetables import missed, stored

pytestmark = pytest.mark.django_db

NIGHTLY = {"queue": "mail", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}


@pytest.fixture
def declare(settings):
    """``declare(nightly={…})``: what settings say, and then migrate."""

    def declared(**schedules: Any) -> None:
        settings.JOBQUEUE = {"QUEUES": {"mail": {}}, "SCHEDULES": schedules}
        call_command("migrate", verbosity=0)

    return declared


def test_declared_schedules_exist_after_migrate(declare):  # R326
    declare(nightly=NIGHTLY | {"data": {"n": 1}, "tags": ["a"], "retry_limit": 7}, off=NIGHTLY | {"enabled": False})

    schedule = stored("nightly")
    assert (schedule.queue_id, schedule.cron, schedule.timezone) == ("mail", "30 2 * * *", "Europe/Berlin")
    assert (schedule.data, schedule.tags, schedule.options) == ({"n": 1}, ["a"], {"retry_limit": 7})
    assert (schedule.from_code, schedule.enabled, schedule.next_at is None) == (True, True, False)
    assert (stored("off").from_code, stored("off").enabled, stored("off").next_at) == (True, False, None)


def test_a_declared_schedule_may_send_to_the_default_queue(declare):
    declare(nightly={"queue": "default", "cron": "@daily"})

    assert stored("nightly").queue_id == "default"


def test_a_declared_schedule_follows_its_declaration(declare):
    declare(nightly=NIGHTLY | {"data": {"n": 1}, "priority": 5})

    declare(nightly=NIGHTLY | {"cron": "@hourly", "priority": 6})

    schedule = stored("nightly")
    assert (schedule.cron, schedule.priority, schedule.data) == ("@hourly", 6, None)


def test_migrating_twice_changes_nothing(declare):  # G9
    declare(nightly=NIGHTLY)
    missed("other", "mail", 5)
    before = list(Schedule.objects.values())

    declare(nightly=NIGHTLY)

    assert list(Schedule.objects.values()) == before
    assert services.send_due() == 1


def test_a_schedule_that_is_declared_no_more_is_turned_off_and_kept(declare):
    declare(nightly=NIGHTLY)
    services.run_schedule("nightly")
    services.create_schedule("mine", "mail", "@daily")

    declare()

    schedule = stored("nightly")
    assert (schedule.enabled, schedule.from_code, schedule.next_at) == (False, False, None)
    assert schedule.runs.count() == 1
    assert stored("mine").enabled


def test_a_schedule_that_is_declared_again_is_on_again(declare):
    declare(nightly=NIGHTLY)
    declare()

    declare(nightly=NIGHTLY)

    assert (stored("nightly").enabled, stored("nightly").from_code) == (True, True)


def test_what_an_operator_turned_off_stays_off(declare):  # R370
    declare(nightly=NIGHTLY)
    Schedule.objects.filter(name="nightly").update(enabled=False)

    declare(nightly=NIGHTLY | {"enabled": True, "priority": 1})

    assert (stored("nightly").enabled, stored("nightly").priority) == (False, 1)


def test_what_an_operator_turned_on_stays_on(declare):  # R370
    declare(nightly=NIGHTLY | {"enabled": False})
    Schedule.objects.filter(name="nightly").update(enabled=True)

    declare(nightly=NIGHTLY | {"enabled": False})

    assert stored("nightly").enabled


def test_a_wrong_declaration_changes_nothing(settings):
    settings.JOBQUEUE = {"SCHEDULES": {"a": {"queue": "default", "cron": "@daily"}, "b": {"queue": "default"}}}
    with pytest.raises(InvalidOption, match="cron"):
        sync_declared_schedules(using="default")

    settings.JOBQUEUE = {"SCHEDULES": {"a": {"queue": "default", "cron": "@daily"}, "b": NIGHTLY}}
    with pytest.raises(QueueNotFound, match="mail"):
        sync_declared_schedules(using="default")
    assert not Schedule.objects.exists()


def test_a_database_without_the_table_is_left_alone(settings):
    settings.JOBQUEUE = {"SCHEDULES": {"a": {"queue": "default", "cron": "@daily"}}}
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobqueue_schedule RENAME TO elsewhere")

    sync_declared_schedules(using="default")
