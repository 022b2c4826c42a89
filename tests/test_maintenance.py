"""One pass of maintenance: by one process at a time, in bounded time, and a broken step stops no other."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction

from django_jobqueue import maintenance, services
from django_jobqueue.engine.sweeps import bounded
from django_jobqueue.exceptions import JobQueueError
from django_jobqueue.identifiers import uuid7
from django_jobqueue.maintenance import STEPS, MaintenanceReport, maintain
from django_jobqueue.models import Job, Maintenance, QueueMinute, Schedule, ScheduleRun, Worker
from django_jobqueue.signals import queue_backlog
from django_jobqueue.states import Hold, JobState

from .factories import JobFactory, QueueFactory
from .past import ago, reread, rewrite
from .services.lives import claimed, sent

pytestmark = pytest.mark.django_db

NAMES = ["recover", "expire", "release", "lanes", "count", "cleanup", "backlogs", "forget", "operations"]


# ------------------------------------------------------------------------------------------------- what a pass does


def test_a_pass_takes_every_step_in_order():
    report = maintain()

    assert not report.skipped
    assert [step.name for step in report.steps] == NAMES
    assert report.errors == {}
    assert report.seconds >= max(step.seconds for step in report.steps)


def test_a_pass_ends_what_took_too_long(queue):  # R360
    job = claimed(queue)
    rewrite(job, expire_at=ago(hours=1))

    assert maintain()["expire"].done == {queue.name: 1}
    assert reread(job).state == JobState.RETRY


def test_a_pass_recovers_jobs_of_workers_that_vanished(queue):  # R112 B11
    worker = Worker.objects.create(name="w", heartbeat_at=ago(hours=1))
    sent(queue)
    (job,) = services.fetch(queue.name, worker="w", incarnation=worker.pk)

    assert maintain()["recover"].done == {queue.name: 1}
    assert reread(job).state == JobState.UNKNOWN_RETRY


def test_a_pass_lets_go_what_is_due_although_nobody_fetches(queue, fifo_queue):
    due = rewrite(sent(queue, delay=60), start_after=ago(seconds=1))
    ordered = rewrite(sent(fifo_queue, delay=60, singleton_key="a"), start_after=ago(seconds=1))
    later = sent(queue, delay=60)

    report = maintain()

    assert report["release"].done == {queue.name: 1, fifo_queue.name: 1}
    assert [reread(job).hold for job in (due, ordered, later)] == [None, None, Hold.UNTIL]


def test_a_pass_takes_back_jobs_whose_lease_ran_out(queue):  # B33
    sent(queue)
    (job,) = services.fetch(queue.name, lease=60)
    rewrite(job, lease_until=ago(seconds=1))

    assert maintain()["release"].done == {queue.name: 1}
    assert (reread(job).state, reread(job).retry_count) == (JobState.RETRY, 0)


def test_a_pass_frees_stranded_lanes_and_says_so(fifo_queue, singleton_queue, caplog):
    stranded = JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)
    other = JobFactory(queue=singleton_queue, hold=Hold.LANE)

    report = maintain()

    assert report["lanes"].done == {fifo_queue.name: 1, singleton_queue.name: 1}
    assert [reread(job).hold for job in (stranded, other)] == [None, None]
    assert "stranded lanes" in caplog.text


def test_a_pass_cleans_up(queue):  # R361
    done = rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))
    old = rewrite(JobFactory(queue=queue), created_at=ago(days=15), start_after=ago(days=15))
    overdue = JobFactory(queue=queue, hold=Hold.UNTIL)
    rewrite(overdue, created_at=ago(days=15), start_after=ago(days=15))

    assert maintain()["cleanup"].done == {queue.name: 3}
    assert not Job.objects.filter(pk__in=[done.pk, old.pk, overdue.pk]).exists()


def test_with_an_archive_finished_jobs_are_left_to_it(queue, settings):
    settings.JOBQUEUE = {"ARCHIVE": True}
    done = rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))
    old = rewrite(JobFactory(queue=queue), created_at=ago(days=15), start_after=ago(days=15))

    assert maintain()["cleanup"].done == {queue.name: 1}
    assert Job.objects.filter(pk=done.pk).exists()
    assert not Job.objects.filter(pk=old.pk).exists()


def test_a_pass_warns_of_backlogs(queue, caplog):  # R097
    services.update_queue(queue.name, warning_queue_size=1)
    JobFactory.create_batch(3, queue=queue)

    with caplog.at_level(logging.WARNING):
        report = maintain()

    assert report["backlogs"].done == {queue.name: 3}
    assert "backlog: queue" in caplog.text


def test_a_pass_counts_what_it_then_deletes(queue):
    ended = ago(minutes=2)
    times = {"created_at": ended, "started_at": ended, "assigned_at": ended, "finalized_at": ended}
    JobFactory(queue=queue, state="completed", delete_at=ago(seconds=1), **times)

    report = maintain()

    assert (report["count"].done, report["cleanup"].done) == ({"minutes": 60}, {queue.name: 1})
    assert QueueMinute.objects.get(completed=1).sent == 1


def test_a_pass_forgets_what_is_long_over(queue):
    now, old = Worker.objects.create(name="now"), Worker.objects.create(name="old", stopped_at=ago(days=2))
    fresh = Worker.objects.create(name="fresh", stopped_at=ago(hours=23))
    holding = Worker.objects.create(name="holding", stopped_at=ago(days=2))
    schedule = Schedule.objects.create(name="nightly", queue=queue, cron="0 3 * * *")
    ScheduleRun.objects.create(schedule=schedule, slot=ago(days=400))
    QueueMinute.objects.create(queue=queue, minute=ago(days=31))
    with bounded(0):  # so that nothing is recovered before
        JobFactory(queue=queue, state="active", assignee="holding", incarnation=holding.pk)
        done = maintenance._forget("default")

    assert done == {"workers": 1, "runs": 1, "minutes": 1, "staged": 0, "operations": 0, "operation_batches": 0}
    assert set(Worker.objects.all()) == {now, fresh, holding}
    assert not Worker.objects.filter(pk=old.pk).exists()


def test_what_a_pass_did_is_kept_for_operators(queue):
    rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))

    report = maintain()

    row = Maintenance.objects.get()
    assert row.ended_at is not None
    assert row.began_at is not None
    assert (row.holder, row.lease_until) == (None, None)
    assert row.report == json.loads(json.dumps(report.as_dict()))
    assert [step["name"] for step in row.report["steps"]] == NAMES


def test_a_pass_that_finds_nothing_changes_no_job(queue, fifo_queue):
    for state in (JobState.CREATED, JobState.ACTIVE, JobState.COMPLETED):
        JobFactory(queue=queue, state=state)
    JobFactory(queue=fifo_queue, state="failed", singleton_key="a")
    JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)
    before = list(Job.objects.order_by("pk").values())

    report = maintain()

    assert {step.name: step.number for step in report.steps if step.number} == {"count": 60}
    assert list(Job.objects.order_by("pk").values()) == before


# ------------------------------------------------------------------------------------------------- one step fails


@pytest.fixture
def broken_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that raises, one that spoils its transaction, and one that does its work."""

    def raises(using: str) -> dict[str, int]:
        raise JobQueueError("this step is broken")

    def spoils(using: str) -> dict[str, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        return {}

    works = [
        maintenance._StepToRun("raises", raises),
        maintenance._StepToRun("spoils", spoils),
        STEPS[NAMES.index("cleanup")],
    ]
    monkeypatch.setattr(maintenance, "STEPS", tuple(works))


def check_broken_steps(queue: Any, caplog: pytest.LogCaptureFixture) -> None:
    rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))

    report = maintain()

    assert report.errors["raises"] == "JobQueueError: this step is broken"
    assert "division by zero" in report.errors["spoils"]
    assert report["cleanup"].done == {queue.name: 1}
    records = [record for record in caplog.records if record.message.startswith("maintenance step failed")]
    steps = [record.__dict__["step"] for record in records]
    assert steps == ["raises", "spoils"]


def test_a_step_that_fails_is_logged_and_stops_no_other(queue, broken_steps, caplog):
    check_broken_steps(queue, caplog)  # inside a caller's transaction, which stays usable


@pytest.mark.django_db(transaction=True)
def test_a_step_that_fails_outside_a_transaction_stops_no_other(queue, broken_steps, caplog):
    check_broken_steps(queue, caplog)


@pytest.mark.django_db(transaction=True)
def test_a_step_whose_connection_breaks_stops_no_other(queue, monkeypatch):
    def breaks(using: str) -> dict[str, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return {}

    works = (maintenance._StepToRun("breaks", breaks), STEPS[NAMES.index("cleanup")])
    monkeypatch.setattr(maintenance, "STEPS", works)
    rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))

    report = maintain()

    assert list(report.errors) == ["breaks"]
    assert report["cleanup"].done == {queue.name: 1}


# ------------------------------------------------------------------------------------------------- one at a time


def leased(**columns: Any) -> None:
    Maintenance.objects.update_or_create(pk=Maintenance.ONLY, defaults={"holder": uuid7(), **columns})


def test_while_another_process_is_at_it_a_pass_is_skipped(queue):
    leased(lease_until=ago(seconds=-30))
    old = rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))

    report = maintain()

    assert report == MaintenanceReport(skipped=True)
    assert Job.objects.filter(pk=old.pk).exists()


def test_a_process_that_died_in_a_pass_is_waited_for_no_longer_than_its_lease():
    leased(lease_until=ago(seconds=1), began_at=ago(minutes=2))

    assert not maintain().skipped


def test_a_pass_can_be_asked_for_only_if_the_last_is_some_time_ago():
    maintain()

    assert maintain(every=30).skipped
    Maintenance.objects.update(began_at=ago(seconds=31))
    assert not maintain(every=30).skipped
    assert not maintain().skipped


def test_a_clock_that_was_put_back_does_not_stop_maintenance():
    """The lease and the last pass then lie an hour ahead."""
    leased(lease_until=ago(hours=-1), began_at=ago(hours=-1))

    assert not maintain(every=30).skipped


def test_a_report_knows_only_its_steps():
    with pytest.raises(KeyError):
        maintain()["sleep"]


@pytest.mark.django_db(transaction=True)
def test_nobody_waits_for_a_pass_that_is_just_being_taken(race):
    maintain()
    looked = threading.Event()
    taken = threading.Event()

    def holds() -> bool:
        with transaction.atomic():
            report = maintain()
            taken.set()
            assert looked.wait(30)
        return report.skipped

    def asks() -> bool:
        assert taken.wait(30)
        try:
            return maintain().skipped
        finally:
            looked.set()

    assert race(2, holds, asks) == [False, True]


@pytest.mark.django_db(transaction=True)
def test_of_many_that_ask_at_once_one_makes_the_pass(queue, race):
    for _ in range(30):
        rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))

    reports = race(8, lambda: maintain(every=60))

    made = [report for report in reports if not report.skipped]
    assert len(made) == 1
    assert made[0]["cleanup"].done == {queue.name: 30}
    assert made[0].errors == {}


ASK = """
import django, json, sys
from django.conf import settings
settings.DATABASES["default"]["NAME"] = sys.argv[1]
django.setup()
from django_jobqueue.maintenance import maintain
sys.stdin.readline()
print(json.dumps(maintain(every=60).as_dict()))
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
def test_of_several_processes_one_makes_the_pass(queue):
    rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))
    command = [sys.executable, "-c", ASK, str(connection.settings_dict["NAME"])]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment())
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    reports = [json.loads(process.communicate(timeout=60)[0]) for process in processes]

    assert sorted(report["skipped"] for report in reports) == [False, True, True]
    assert not Job.objects.exists()


def _environment() -> dict[str, str]:
    return os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"}


@pytest.mark.django_db(transaction=True)
def test_a_pass_that_was_taken_over_goes_no_further(queue, monkeypatch, caplog):
    other = uuid7()

    def slow(using: str) -> dict[str, int]:
        Maintenance.objects.update(holder=other, lease_until=ago(seconds=-60))
        return {}

    monkeypatch.setattr(maintenance, "STEPS", (maintenance._StepToRun("slow", slow), STEPS[0]))

    report = maintain()

    assert [step.name for step in report.steps] == ["slow"]
    assert Maintenance.objects.get().holder == other
    assert "maintenance continues in another process" in caplog.text


@pytest.fixture
def fresh_session_each_time() -> Iterator[list[int]]:
    """What a transaction pooler does: outside a transaction, every statement may come to another session."""
    sessions: list[int] = []

    def swap(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        wrapper = context["connection"]
        if wrapper.get_autocommit() and not wrapper.in_atomic_block:
            assert "pg_advisory_lock" not in sql
            assert "pg_try_advisory_lock" not in sql
        sessions.append(wrapper.connection.info.backend_pid)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(swap):
        yield sessions


@pytest.mark.django_db(transaction=True)
def test_behind_a_pooler_a_pass_needs_no_session_of_its_own(queue, settings, fresh_session_each_time, monkeypatch):
    settings.JOBQUEUE = {"POOLER": True}
    rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))
    works = [step for one in STEPS for step in (maintenance._StepToRun("reconnect", _reconnect), one)]
    monkeypatch.setattr(maintenance, "STEPS", tuple(works))

    report = maintain()

    assert report.errors == {}
    assert report["cleanup"].done == {queue.name: 1}
    assert len(set(fresh_session_each_time)) > len(STEPS)
    assert _session_locks() == 0


def _reconnect(using: str) -> dict[str, int]:
    connections[using].close()
    return {}


def _session_locks() -> int:
    with psycopg.connect(**connection.get_connection_params()) as other:
        found = other.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"  # others test beside us
        ).fetchone()
    assert found is not None
    return int(found[0])


# ------------------------------------------------------------------------------------------------------ within bounds


def test_a_step_stops_when_its_time_is_over_and_the_next_pass_goes_on(queue, monkeypatch):
    for _ in range(5):
        rewrite(JobFactory(queue=queue, state="completed"), delete_at=ago(seconds=1))
    hurried = maintenance._StepToRun("cleanup", maintenance._clean_up, seconds=0)
    monkeypatch.setattr(maintenance, "STEPS", (hurried,))

    report = maintain()

    assert (report["cleanup"].number, report["cleanup"].unfinished) == (0, True)
    monkeypatch.undo()
    assert (maintain()["cleanup"].number, maintain()["cleanup"].unfinished) == (5, False)


def test_waiting_jobs_are_looked_through_over_several_passes(monkeypatch):
    monkeypatch.setattr("django_jobqueue.engine.retention.LOOKED_AT_ONCE", 2)
    monkeypatch.setattr(maintenance, "STEPS", tuple(step._replace(looks=3) for step in STEPS))
    for name in ("a", "b"):
        queue = QueueFactory(name=name)
        for number in range(5):
            JobFactory(queue=queue, priority=number % 2, retention_seconds=1 if number in (3, 4) else 10**6)
    Job.objects.update(created_at=ago(seconds=10), start_after=ago(seconds=10))

    passes = [maintain()["cleanup"] for _ in range(8)]

    assert sum(step.number for step in passes) == 4
    assert all(step.number <= 2 for step in passes)
    assert passes[0].unfinished
    assert set(Job.objects.values_list("retention_seconds", flat=True)) == {10**6}


def test_lanes_are_checked_over_several_passes(fifo_queue, singleton_queue, monkeypatch):
    monkeypatch.setattr("django_jobqueue.engine.recovery.LANES_AT_ONCE", 2)
    monkeypatch.setattr(maintenance, "STEPS", tuple(step._replace(looks=3) for step in STEPS))
    stranded = []
    for queue in (fifo_queue, QueueFactory(name="more", policy=fifo_queue.policy), singleton_queue):
        for key in "abcde":
            stranded.append(JobFactory(queue=queue, singleton_key=key, hold=Hold.LANE))

    passes = [maintain()["lanes"] for _ in range(8)]

    assert all(step.number <= 4 for step in passes)
    assert passes[0].unfinished
    assert [job.pk for job in stranded if reread(job).hold] == []


def test_a_verb_by_itself_goes_through_everything(queue, fifo_queue, monkeypatch):
    monkeypatch.setattr("django_jobqueue.engine.retention.LOOKED_AT_ONCE", 2)
    monkeypatch.setattr("django_jobqueue.engine.recovery.LANES_AT_ONCE", 2)
    for number in range(7):
        JobFactory(queue=queue, priority=number % 3, retention_seconds=1)
        JobFactory(queue=fifo_queue, singleton_key=f"k{number}", hold=Hold.LANE)
    Job.objects.update(created_at=ago(seconds=10), start_after=ago(seconds=10))

    assert services.cleanup() == {queue.name: 7}
    assert len(services.check_lanes()) == 7


def test_jobs_of_a_queue_that_is_gone_are_cleaned_up_too():
    """A slow transaction can send to a queue while another transaction deletes it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, created_at, start_after, retention_seconds) "
            "SELECT gen_random_uuid(), 'gone', now() - interval '1 day', now() - interval '1 day', 60"
        )

    assert maintain()["cleanup"].done == {"gone": 1}


@pytest.mark.django_db(transaction=True)
def test_a_receiver_of_backlogs_that_raises_does_not_stop_the_pass(queue):
    services.update_queue(queue.name, warning_queue_size=1)
    sent(queue), sent(queue)

    def receiver(**said: Any) -> None:
        raise RuntimeError("broken")

    queue_backlog.connect(receiver)
    try:
        assert maintain()["backlogs"].done == {queue.name: 2}
    finally:
        queue_backlog.disconnect(receiver)
