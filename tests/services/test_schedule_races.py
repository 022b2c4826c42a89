"""Several schedulers at once: one job per slot, none lost and none doubled, also when one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

from django_jobqueue import services
from django_jobqueue.models import Job, Schedule, ScheduleRun
from django_jobqueue.services import schedules

from .timetables import database_now, due, jobs, missed, recorded, runs, slots_ago, stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.concurrency]

DEADLINE_SECONDS = 60


@pytest.fixture(autouse=True)
def _no_trouble() -> None:
    schedules.troubled.forget()


def check_one_job_per_slot() -> None:
    sent = list(ScheduleRun.objects.values_list("schedule", "slot", "job_id"))
    assert None not in {job_id for *_, job_id in sent}
    assert {job_id for *_, job_id in sent} == set(Job.objects.values_list("pk", flat=True))
    assert set(Counter((name, slot) for name, slot, _ in sent).values()) <= {1}
    assert len({job_id for *_, job_id in sent}) == len(sent)


@pytest.mark.parametrize("schedulers", (3, 5))
def test_schedulers_at_once_send_one_job_per_slot(queue, race, schedulers):  # R369 G9 F47
    expected = {}
    for n, catch_up in enumerate(("none", "last", "all", "last", "all")):
        _, slots = missed(f"s{n}", "work", 50, 35, 20, catch_up=catch_up)
        expected[f"s{n}"] = {"none": [], "last": slots[-1:], "all": slots}[catch_up]

    sent = race(schedulers, services.send_due)

    assert sum(sent) == sum(map(len, expected.values()))
    assert {name: recorded(name) for name in expected} == expected
    check_one_job_per_slot()


def test_schedulers_that_go_on_and_on_lose_and_double_nothing(queue, race):  # G9
    """Each round moves the schedule back to an hour before, as if it had slept; the slots of old rounds are done."""
    names = [f"s{n}" for n in range(4)]
    for name in names:
        missed(name, "work", 50, 40, 30, 20, catch_up="all")

    def rounds() -> int:
        sent = 0
        for number in range(15):
            sent += services.send_due()
            Schedule.objects.filter(pk=names[number % 4]).update(next_at=slots_ago(50)[0])
        return sent

    sent = sum(race(5, rounds))

    assert sent == len(names) * 4
    assert all(len(recorded(name)) == 4 for name in names)
    check_one_job_per_slot()


# Each is due once a week, at a time that the clock jumps over or shows twice when it changes.
THROUGH_CHANGES = {
    "Europe/Berlin": "30 2 * * SUN",
    "America/New_York": "30 2 * * SUN",
    "Australia/Lord_Howe": "15 2 * * SUN",
    "Pacific/Chatham": "15 3 * * SUN",
    "Africa/Casablanca": "30 2 * * SUN",
    "Africa/Cairo": "30 0 * * FRI",
}


def test_schedulers_after_a_year_with_two_clock_changes_in_each_zone(queue, race):  # G9
    now = database_now()
    start = now - timedelta(days=340)
    for zone, line in THROUGH_CHANGES.items():
        services.create_schedule(zone, "work", line, timezone=zone, catch_up="all")
    Schedule.objects.update(next_at=start)

    sent = race(3, services.send_due)

    for zone, line in THROUGH_CHANGES.items():
        dates = Counter(slot.astimezone(ZoneInfo(zone)).date() for slot in recorded(zone))
        weekday = {"SUN": 6, "FRI": 4}[line[-3:]]
        days = [(start + timedelta(days=n)).date() for n in range(2, 340)]
        assert set(dates) >= {day for day in days if day.weekday() == weekday}
        assert set(dates.values()) == {1}
    assert sum(sent) == len(jobs("work"))
    check_one_job_per_slot()


def test_a_scheduler_passes_by_what_another_handles(queue, race):  # F47
    due("held", "work")
    due("free", "work")
    with transaction.atomic():
        Schedule.objects.select_for_update().get(pk="held")

        assert race(1, services.send_due) == [1]
        assert recorded("held") == []

    assert services.send_due() == 1
    check_one_job_per_slot()


@pytest.mark.parametrize("is_stored", (True, False))
def test_a_transaction_that_does_not_end_holds_up_one_schedule_and_no_other(exclusive_queue, queue, race, is_stored):
    """Whether the slot of a policy is taken is known only when the transaction that took it has ended."""
    missed("waits", "backups", 6)
    due("free", "work")
    with transaction.atomic():
        services.send("backups")

        assert sum(race(3, services.send_due)) == 1
        assert (recorded("waits"), len(recorded("free"))) == ([], 1)
        assert race(1, services.send_due) == [0]  # without waiting again
        transaction.set_rollback(not is_stored)

    schedules.troubled.forget()  # some seconds later
    assert services.send_due() == (0 if is_stored else 1)
    assert [run.job_id is None for run in runs("waits")] == [is_stored]


def test_a_run_by_hand_in_a_long_transaction_does_not_hold_up_the_slots(queue, race):
    due("nightly", "work")
    with transaction.atomic():
        services.run_schedule("nightly")

        assert race(1, services.send_due) == [1]

    assert [run.by_hand for run in runs("nightly")] == [False, True]


def test_one_schedule_made_by_many_at_once_is_one(queue, race):  # R367
    made = race(5, lambda: services.create_schedule("nightly", "work", "@daily", data={"n": 1}))

    assert {schedule.pk for schedule in made} == {"nightly"}
    assert Schedule.objects.count() == 1


def test_an_edit_during_a_tick_is_not_undone_by_it(queue, race):  # R367
    due("nightly", "work")

    def edit() -> None:
        schedule = stored("nightly")
        schedule.cron = "17 3 * * *"
        schedule.save()

    race(4, services.send_due, edit, services.send_due, lambda: services.run_schedule("nightly"))

    schedule = stored("nightly")
    assert schedule.cron == "17 3 * * *"
    assert schedule.next_at == schedule.next_slots(1)[0]


# ---------------------------------------------------------------------------------------------------- real processes

SCHEDULER = """
import django, sys
django.setup()
from django_jobqueue.services import send_due
from django.db import connection
connection.ensure_connection()
print("ready", flush=True)
for line in sys.stdin:  # one pass for each line
    print(send_due(), flush=True)
"""


@contextmanager
def scheduler_processes(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    database = connection.settings_dict
    given = {"dbname": database["NAME"], "host": database["HOST"], "port": database["PORT"], "user": database["USER"],
             "password": database["PASSWORD"], **database["OPTIONS"]}  # fmt: skip
    dsn = make_conninfo(**{name: value for name, value in given.items() if value})
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "JOBQUEUE_TEST_DSN": dsn}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCHEDULER], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


# A gate between the record of a slot and its job, which stays shut while a session holds the advisory lock. It does not
# wait for the lock itself, because a tick gives up when it has to.
GATE = """
CREATE FUNCTION jobqueue_test_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE NOT pg_try_advisory_xact_lock_shared(4711) LOOP PERFORM pg_sleep(0.02); END LOOP;
    RETURN NEW;
END $$;
CREATE TRIGGER jobqueue_test_gate AFTER INSERT ON jobqueue_schedulerun FOR EACH ROW
EXECUTE FUNCTION jobqueue_test_gate();
"""
NO_GATE = "DROP TRIGGER jobqueue_test_gate ON jobqueue_schedulerun; DROP FUNCTION jobqueue_test_gate()"
AT_THE_GATE = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"


def sql(text: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return int(cursor.fetchone()[0] or 0) if cursor.description else 0


@pytest.fixture
def gate(transactional_db: None) -> Iterator[None]:
    sql(GATE)
    yield
    sql(NO_GATE)


@pytest.mark.faults
def test_a_scheduler_killed_at_the_tick_leaves_it_to_the_four_others(queue, gate):  # G9 F47
    _, slots = missed("nightly", "work", 50, 35, 20, catch_up="all")

    with scheduler_processes(5) as (leader, *rest):
        sql("SELECT pg_advisory_lock(4711)::text IS NULL")
        ask(leader)
        until(lambda: sql(AT_THE_GATE) == 1)  # it holds the schedule, and has recorded a slot that has no job yet
        for process in rest:
            ask(process)
        assert [answer(process) for process in rest] == [0] * 4  # they pass by

        os.kill(leader.pid, signal.SIGKILL)
        sql("SELECT pg_advisory_unlock(4711)::text IS NULL")
        sent = 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while sent < 3 and time.monotonic() < deadline:
            for process in rest:
                ask(process)
            sent += sum(answer(process) for process in rest)

    assert sent == 3
    assert recorded("nightly") == slots
    assert len(jobs("work")) == 3
    assert stored("nightly").next_at == slots[0] + timedelta(hours=1)
    check_one_job_per_slot()


@pytest.mark.faults
def test_processes_killed_at_random_lose_and_double_no_slot(queue):  # G9 F47
    names = [f"s{n}" for n in range(30)]
    slots = {name: missed(name, "work", 50, 35, 20, catch_up="all")[1] for name in names}

    with scheduler_processes(3) as processes:
        for process in processes:
            ask(process)
        for number, process in enumerate(processes):
            until(lambda number=number: ScheduleRun.objects.count() > 20 * number)  # type: ignore[misc]
            os.kill(process.pid, signal.SIGKILL)
    until(lambda: services.send_due() == 0 and not Schedule.objects.due().exists())

    assert {name: recorded(name) for name in names} == slots
    check_one_job_per_slot()
