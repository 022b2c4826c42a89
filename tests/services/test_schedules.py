"""Schedules: making them, and the jobs that their slots send."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobqueue import cron, services
from django_jobqueue.engine.sql.schedules import FORGET_RUNS
from django_jobqueue.exceptions import (
    InvalidData,
    InvalidOption,
    KeyRequired,
    QueueNotFound,
    ScheduleNotFound,
)
from django_jobqueue.models import Job, Schedule, ScheduleRun
from django_jobqueue.services import schedules
from tests.past import ago

from . import bad_values as BV
from .lives import claimed, refused, refuses_all, sent
from .timetables import database_now, due, jobs, missed, recorded, runs, slots_ago, stored

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_trouble() -> None:
    schedules.troubled.forget()


# ------------------------------------------------------------------------------------------------------ making them

OPTIONS: dict[str, Any] = {
    "timezone": "Europe/Berlin",
    "handler": "reports.nightly",
    "data": {"kind": "full"},
    "priority": 5,
    "singleton_key": "nightly",
    "group_key": "reports",
    "tags": ["slow", "night"],
    "catch_up": "all",
}


def test_a_schedule_is_created_with_its_options(queue):  # R367 R368
    made = services.create_schedule("nightly", "work", "30  2 * * *", **OPTIONS, retry_limit=7, enabled=True)

    schedule = stored("nightly")
    assert schedule == made
    assert (schedule.queue, schedule.cron, schedule.enabled, schedule.from_code) == (queue, "30 2 * * *", True, False)
    assert {name: getattr(schedule, name) for name in OPTIONS} == OPTIONS
    assert schedule.options == {"retry_limit": 7}
    assert schedule.next_at == next(cron.slots_after("30 2 * * *", "Europe/Berlin", database_now()))
    assert schedule.last_slot is None


def test_a_schedule_needs_no_options(queue):  # R367
    schedule = services.create_schedule("nightly", "work", "@daily")

    assert (schedule.timezone, schedule.data, schedule.catch_up, schedule.enabled) == ("UTC", None, "last", True)


def test_creating_a_schedule_again_makes_it_as_said_then(queue, fifo_queue):  # R367
    services.create_schedule("nightly", "work", "30 2 * * *", **OPTIONS, retry_limit=7)

    again = services.create_schedule("nightly", "orders", "0 3 * * *", singleton_key="a")

    assert (again.queue_id, again.cron, again.singleton_key) == ("orders", "0 3 * * *", "a")
    assert (again.timezone, again.handler, again.data, again.tags, again.options) == ("UTC", "", None, [], {})
    assert again.next_at == next(cron.slots_after("0 3 * * *", "UTC", database_now()))
    assert again.updated_at > again.created_at
    assert Schedule.objects.count() == 1


def test_creating_a_schedule_again_loses_no_slot(queue):  # G9
    schedule, [slot] = missed("nightly", "work", 5)

    again = services.create_schedule("nightly", "work", schedule.cron, data={"n": 2})

    assert (again.next_at, again.data) == (slot, {"n": 2})
    assert services.send_due() == 1


def test_creating_a_schedule_again_leaves_it_off_unless_told(queue):  # R370
    services.create_schedule("nightly", "work", "@daily", enabled=False)
    assert stored("nightly").next_at is None

    services.create_schedule("nightly", "work", "@hourly")
    assert (stored("nightly").enabled, stored("nightly").next_at) == (False, None)

    services.create_schedule("nightly", "work", "@hourly", enabled=True)
    assert stored("nightly").enabled
    assert stored("nightly").next_at == next(cron.slots_after("@hourly", "UTC", database_now()))


def test_a_schedule_that_never_fires_is_refused(queue):  # R367 F46
    for line in ("0 0 30 2 *", "* * */20 * 1L"):
        with refused(InvalidOption) as caught:
            services.create_schedule("nightly", "work", line)
        assert "never fires" in str(caught.value)
    assert not Schedule.objects.exists()


def test_a_schedule_for_no_queue_is_refused(queue, fifo_queue):  # R313
    with refused(QueueNotFound) as missing:
        services.create_schedule("nightly", "wrok", "@daily")
    assert "Did you mean 'work'?" in str(missing.value)
    with refused(KeyRequired):
        services.create_schedule("nightly", "orders", "@daily")


BAD: dict[str, tuple[Any, ...]] = {
    "cron": (None, 5, "", "* * * *", "61 * * * *", "0 0 30 2 *", BV.NUL, BV.SURROGATE, "* " * 200, b"@daily", []),
    "timezone": (None, 5, "", "Mars", "Europe", "../etc/passwd", BV.NUL, BV.SURROGATE, "x" * 1000, b"UTC", True),
    "handler": BV.TEXTS,
    "singleton_key": BV.TEXTS,
    "group_key": BV.TEXTS,
    "priority": ("high", 1.5, True, None, BV.NAN, 2**31, -(2**31), 10**400, b"1", [], object()),
    "catch_up": (None, "", "some", "ALL", 5, True, ["all"], object(), BV.NUL),
    "enabled": (0, 1, "yes", [], object()),
    "retry_limit": BV.COUNTS,
    "expire_in_seconds": (None, 0, 1.5, *BV.SECONDS),
    "delay": (5,),  # slots say when
    "policy": ("fifo",),
    "retry_limt": (5,),
}  # fmt: skip


@pytest.mark.parametrize("option", BAD)
def test_a_bad_option_of_a_schedule_is_refused(queue, option):  # R315
    def create(value: object) -> object:
        given = {"cron": "@daily"} | {option: value}
        return services.create_schedule("nightly", "work", **given)  # type: ignore[arg-type]

    refuses_all(create, BAD[option], InvalidOption, option=option)
    assert not Schedule.objects.exists()


def test_bad_names_queues_tags_and_data_of_a_schedule_are_refused(queue):  # R315 R313
    refuses_all(lambda tags: services.create_schedule("s", "work", "@daily", tags=tags), BV.TAGS, InvalidOption)
    refuses_all(
        lambda name: services.create_schedule(name, "work", "@daily"),
        ("", " ", None, 5, " a", "a ", "a\n", "x" * 101, BV.NUL, BV.SURROGATE, b"a", ["a"], object()),
        InvalidOption,
        option="name",
    )
    refuses_all(
        lambda name: services.create_schedule("s", name, "@daily"),
        (*BV.QUEUES, None),
        InvalidOption,
        QueueNotFound,
    )
    for data, path in BV.DATA:
        with refused(InvalidData) as caught:
            services.create_schedule("s", "work", "@daily", data=data)
        assert f"{path}:" in str(caught.value)
    assert not Schedule.objects.exists()


def test_an_unknown_option_of_a_schedule_is_told_with_the_closest(queue):  # R315
    with refused(InvalidOption) as caught:
        services.create_schedule("s", "work", "@daily", time_zone="UTC")

    assert "Did you mean 'timezone'?" in str(caught.value)


def test_schedules_are_listed_per_queue_and_deleted_by_name(queue, fifo_queue):  # R371 R372
    services.create_schedule("a", "work", "@daily")
    services.create_schedule("b", "work", "@daily", enabled=False)
    services.create_schedule("c", "orders", "@daily", singleton_key="c")
    services.run_schedule("a")

    assert [schedule.name for schedule in Schedule.objects.of_queue("work")] == ["a", "b"]
    assert [schedule.name for schedule in Schedule.objects.enabled()] == ["a", "c"]
    Schedule.objects.filter(name="a").delete()
    assert [schedule.name for schedule in Schedule.objects.all()] == ["b", "c"]
    assert not ScheduleRun.objects.exists()


def test_a_schedule_tells_what_it_does_in_english_and_when(queue):
    schedule = services.create_schedule("nightly", "work", "30 2 * * *", timezone="Europe/Berlin")

    assert schedule.description == "At 02:30 every day, Europe/Berlin"
    slots = schedule.next_slots()
    assert len(slots) == 5
    assert slots[0] == schedule.next_at
    assert {slot.strftime("%H:%M") for slot in slots} <= {"02:30", "03:00"}
    assert {slot.strftime("%z") for slot in slots} <= {"+0100", "+0200"}


# -------------------------------------------------------------------------------------------------------- due slots


def test_a_due_slot_sends_a_job_with_the_options_of_the_schedule(queue):  # R369 R368
    schedule, [slot] = missed("nightly", "work", 5, **OPTIONS, retry_limit=7, expire_in_seconds=60)

    assert services.send_due() == 1

    [job] = jobs("work")
    assert (job.name, job.data, job.priority) == ("reports.nightly", {"kind": "full"}, 5)
    assert (job.singleton_key, job.group_key, job.tags) == ("nightly", "reports", ["slow", "night"])
    assert (job.retry_limit, job.expire_in_seconds, job.retry_delay) == (7, 60, queue.retry_delay)
    [run] = runs("nightly")
    assert (run.slot, run.job_id, run.by_hand) == (slot, job.pk, False)
    after = stored("nightly")
    assert after.last_slot == slot
    assert after.next_at == slot + timedelta(hours=1)
    assert after.updated_at == schedule.updated_at


def test_a_slot_is_sent_once(queue):  # R369 G9
    _, [slot] = missed("nightly", "work", 5)
    assert services.send_due() == 1
    assert services.send_due() == 0

    Schedule.objects.update(next_at=slot)  # as if the commit had been lost, and it was not
    assert services.send_due() == 0
    assert len(jobs("work")) == len(runs("nightly")) == 1
    assert stored("nightly").next_at == slot + timedelta(hours=1)


def test_what_is_not_due_costs_one_query(queue):  # R369
    services.create_schedule("nightly", "work", "@daily")
    services.create_schedule("off", "work", "@daily", enabled=False)

    with CaptureQueriesContext(connection) as queries:
        assert services.send_due() == 0
    assert len(queries) == 1


def test_looking_for_due_schedules_reads_an_index(queue):  # R369
    later = database_now() + timedelta(hours=1)
    Schedule.objects.bulk_create(
        Schedule(name=f"s{n}", queue=queue, cron="@daily", next_at=later + timedelta(minutes=n)) for n in range(2_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobqueue_schedule")

    plan = Schedule.objects.due().order_by("next_at")[:100].explain()

    assert "Seq Scan" not in plan
    assert "jobqueue_schedule_next_at" in plan


def test_a_schedule_that_is_off_sends_nothing(queue):  # R370
    due("nightly", "work")
    Schedule.objects.filter(name="nightly").update(enabled=False)

    assert services.send_due() == 0
    assert (jobs("work"), stored("nightly").next_at) == ([], None)


def test_time_is_that_of_the_database(queue, monkeypatch):  # R369 F43
    due("nightly", "work")
    services.create_schedule("later", "work", "@hourly")

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(UTC) + timedelta(days=1)

    monkeypatch.setattr("django.utils.timezone.now", Tomorrow.now)
    monkeypatch.setattr(cron, "datetime", Tomorrow)
    services.create_schedule("new", "work", "@hourly")

    assert services.send_due() == 1
    assert stored("new").next_at == stored("later").next_at == next(cron.slots_after("@hourly", "UTC", database_now()))


def test_at_most_so_many_schedules_are_looked_at(queue):
    for n in range(5):
        due(f"s{n}", "work")

    assert [services.send_due(limit=2) for _ in range(4)] == [2, 2, 1, 0]
    refuses_all(lambda limit: services.send_due(limit=limit), (0, None, *BV.COUNTS), InvalidOption, option="limit")


def test_a_paused_queue_is_sent_nothing_and_that_is_recorded(queue):  # R369
    _, [slot] = missed("nightly", "work", 5)
    services.pause("work")

    assert services.send_due() == 0

    assert jobs("work") == []
    assert [(run.slot, run.job_id) for run in runs("nightly")] == [(slot, None)]
    services.resume("work")
    assert services.send_due() == 0


def test_a_taken_slot_of_a_policy_is_recorded_without_a_job(exclusive_queue):  # R369
    sent(exclusive_queue)
    _, [slot] = missed("nightly", "backups", 5)

    assert services.send_due() == 0

    assert len(jobs("backups")) == 1
    assert [(run.slot, run.job_id) for run in runs("nightly")] == [(slot, None)]
    assert stored("nightly").next_at == slot + timedelta(hours=1)


def test_jobs_of_a_schedule_wait_in_the_lane_of_its_key(fifo_queue):
    claimed(fifo_queue, singleton_key="a")
    due("nightly", "orders", singleton_key="a")

    assert services.send_due() == 1
    assert services.fetch("orders", limit=10) == []


def test_sending_joins_the_callers_transaction(queue):
    due("nightly", "work")

    with transaction.atomic():
        assert services.send_due() == 1
        transaction.set_rollback(True)

    assert (jobs("work"), runs("nightly")) == ([], [])
    assert services.send_due() == 1


# ---------------------------------------------------------------------------------------- after an hour without workers


@pytest.mark.parametrize(("catch_up", "wanted"), (("none", slice(0, 0)), ("last", slice(2, 3)), ("all", slice(0, 3))))
def test_after_an_hour_the_slots_that_catch_up_wants_are_sent(queue, catch_up, wanted):  # G9 F48
    _, slots = missed("nightly", "work", 50, 35, 20, catch_up=catch_up)

    assert services.send_due() == len(slots[wanted])

    assert recorded("nightly") == slots[wanted]
    assert [run.job_id for run in runs("nightly")] == [job.pk for job in jobs("work")]  # in the order of their slots
    assert stored("nightly").next_at == slots[0] + timedelta(hours=1)
    assert services.send_due() == 0


def test_a_slot_that_is_sent_in_time_was_not_missed(queue):  # F48
    now = database_now().replace(second=0, microsecond=0)
    services.create_schedule("nightly", "work", "* * * * *", catch_up="none")
    Schedule.objects.update(next_at=now - timedelta(hours=1))

    assert services.send_due() == 1
    assert recorded("nightly")[0] >= now


def test_at_most_a_hundred_slots_are_caught_up_with_the_latest(queue, caplog):  # G9 F48
    services.create_schedule("nightly", "work", "* * * * *", catch_up="all")
    Schedule.objects.update(next_at=ago(days=30))

    assert services.send_due() == 100

    slots = recorded("nightly")
    assert [later - earlier for earlier, later in pairwise(slots)] == [timedelta(minutes=1)] * 99
    assert database_now() - slots[-1] < timedelta(minutes=2)
    assert "schedule missed slots" in caplog.text
    assert services.send_due() <= 1


def test_an_outage_through_a_clock_change_loses_and_doubles_nothing(queue):  # G9
    """Rows are moved, not clocks; so the change must lie in the past, and the schedule slept since."""
    zone, line = "Europe/Berlin", "*/30 * * * *"
    services.create_schedule("nightly", "work", line, timezone=zone, catch_up="all")
    start = datetime(2025, 10, 25, 23, 59, tzinfo=UTC)
    schedule = stored("nightly")
    schedule.next_at = start

    found = schedules._slots_to_send(schedule, start + timedelta(hours=3))

    assert [f"{slot.astimezone(ZoneInfo(zone)):%H:%M%z}" for slot in found] == [
        "02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100", "03:00+0100", "03:30+0100",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ run now


def test_a_schedule_can_be_run_now(queue):
    services.create_schedule("nightly", "work", "@daily", **OPTIONS)
    before = stored("nightly")

    job = services.run_schedule("nightly")

    assert job is not None
    assert (jobs("work"), job.name, job.data) == ([job], "reports.nightly", {"kind": "full"})
    [run] = runs("nightly")
    assert (run.job_id, run.by_hand) == (job.pk, True)
    assert abs(run.slot - database_now()) < timedelta(minutes=1)
    assert (stored("nightly").next_at, stored("nightly").last_slot) == (before.next_at, None)


def test_a_run_by_hand_takes_no_slot(queue):
    due("nightly", "work")

    services.run_schedule("nightly")

    assert services.send_due() == 1
    assert [run.by_hand for run in runs("nightly")] == [False, True]


def test_every_run_by_hand_is_recorded(queue):
    services.create_schedule("nightly", "work", "@daily", enabled=False)  # also of a schedule that is off

    with transaction.atomic():
        for _ in range(5):
            services.run_schedule("nightly")

    assert len(runs("nightly")) == len(jobs("work")) == 5
    assert all(run.slot.microsecond for run in runs("nightly"))


def test_a_run_by_hand_may_find_the_slot_of_the_policy_taken(exclusive_queue):
    sent(exclusive_queue)
    services.create_schedule("nightly", "backups", "@daily")

    assert services.run_schedule("nightly") is None
    assert [run.job_id for run in runs("nightly")] == [None]


def test_a_paused_queue_takes_a_run_by_hand(queue):
    services.create_schedule("nightly", "work", "@daily")
    services.pause("work")

    assert services.run_schedule("nightly") is not None


def test_a_schedule_that_does_not_exist_cannot_be_run(queue):
    services.create_schedule("nightly", "work", "@daily")

    with refused(ScheduleNotFound) as caught:
        services.run_schedule("nigthly")
    assert "Did you mean 'nightly'?" in str(caught.value)
    refuses_all(services.run_schedule, ("nope", *BV.QUEUES, None), ScheduleNotFound, InvalidOption)


# ----------------------------------------------------------------------------------------------------- old records


def test_old_runs_are_forgotten_and_young_ones_kept(queue):
    services.create_schedule("a", "work", "@daily")
    services.create_schedule("b", "work", "@daily")
    now = database_now()
    for name in ("a", "b"):
        ScheduleRun.objects.bulk_create(
            ScheduleRun(schedule_id=name, slot=now - timedelta(days=n, minutes=1)) for n in (0, 29, 30, 31, 400)
        )

    assert services.forget_old_runs(limit=4) == 4
    assert services.forget_old_runs() == 2
    assert services.forget_old_runs() == 0
    assert len(recorded("a")) == len(recorded("b")) == 2
    assert services.forget_old_runs(days=7) == 2


def test_forgetting_reads_an_index(queue):
    services.create_schedule("a", "work", "@daily")
    now = database_now()
    ScheduleRun.objects.bulk_create(ScheduleRun(schedule_id="a", slot=now - timedelta(minutes=n)) for n in range(5_000))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobqueue_schedulerun, jobqueue_schedule")
        cursor.execute(f"EXPLAIN {FORGET_RUNS}", [30, 100, 100])
        plan = "\n".join(row[0] for row in cursor.fetchall())

    assert "jobqueue_schedule_run_one_per_slot" in plan
    assert "Seq Scan on jobqueue_schedulerun" not in plan


def test_forgetting_refuses_bad_arguments(queue):  # R315
    for option in ("days", "limit"):
        refuses_all(
            lambda value, option=option: services.forget_old_runs(**{option: value}),  # type: ignore[misc]
            (0, None, *BV.COUNTS),
            InvalidOption,
            option=option,
        )


def test_deleting_a_queue_deletes_its_schedules(queue):
    due("nightly", "work")
    services.send_due()

    services.delete_queue("work")

    assert not Schedule.objects.exists()
    assert not Job.objects.exists()


def test_the_minutes_of_these_tests_are_whole():
    assert all(slot.second == slot.microsecond == 0 for slot in slots_ago(5, 20))
