"""``manage.py jobs`` on many jobs is an operation: recorded, and continued after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

from django_jobqueue import services
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Operation
from django_jobqueue.services.operations import advance_operations
from django_jobqueue.states import JobState
from tests.factories import JobFactory
from tests.past import left_alone, reread
from tests.waiting import until

from .calling import ROOT, jobs

pytestmark = pytest.mark.django_db

NUMBER = 1_200  # two bits of 500, and a third
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def test_filters_are_recorded_as_the_selection_of_an_operation(queue):
    job = JobFactory(queue=queue, state=JobState.FAILED, tags=["red"], name="ship", assignee="w")

    filters = ["--queue", queue.name, "--state", "failed", "--tag", "red", "--handler", "ship", "--worker", "w"]
    said = jobs("retry", *filters, "--key", "", "--operator", "olga", "--reason", "fixed", "--json")

    operation = Operation.objects.get()
    assert said.json["moved"] == [str(job.pk)]
    assert (operation.operator, operation.reason, operation.state, operation.moved) == ("olga", "fixed", "done", 1)
    document = {name: value for name, value in operation.selection.items() if not name.endswith("_seq")}
    assert document == {
        "queue": queue.name, "states": ["failed"], "key": "", "tags": ["red"], "handler": "ship", "worker": "w",
    }  # fmt: skip


@pytest.mark.parametrize("verb", ("retry", "skip", "cancel", "delete"))
def test_a_limit_bounds_the_operation_by_the_last_of_the_oldest(queue, verb):
    state = JobState.CREATED if verb == "cancel" else JobState.FAILED
    first, second, third = (JobFactory(queue=queue, state=state) for _ in range(3))

    said = jobs(verb, "--queue", queue.name, "--limit", 2, "--json", *(["--reason", "x"] if verb == "skip" else []))

    assert set(said.json["moved"]) == {str(first.pk), str(second.pk)}
    assert Operation.objects.get().selection["until_seq"] == second.seq
    assert reread(third).state == state


def test_running_jobs_of_filters_are_stopped_by_force(queue):
    job = JobFactory(queue=queue, state=JobState.ACTIVE)

    assert jobs("cancel", "--queue", queue.name, "--force").out == "Cancelled 1 job.\n"

    assert reread(job).state == JobState.STOPPED


def test_operations_are_listed_the_latest_first(queue):
    assert jobs("operations").out == "There are no operations.\n"
    services.retry(JobFactory(queue=queue, state=JobState.FAILED).pk, operator="olga", reason="fixed")
    services.begin_operation("delete", selection={}, operator="ada")

    said = jobs("operations", "--json")

    found = [(each["verb"], each["operator"], each["state"], each["moved"]) for each in said.json["operations"]]
    assert found == [("delete", "ada", "running", 0), ("retry", "olga", "done", 1)]
    assert len(jobs("operations", "--limit", 1, "--json").json["operations"]) == 1
    assert "olga" in jobs("operations").out


def test_a_stopped_operation_is_continued_by_its_id(queue):
    job = JobFactory(queue=queue, state=JobState.FAILED)
    operation = services.begin_operation("retry", selection={}, operator="olga")
    services.stop_operation(operation)

    assert jobs("resume_operation", operation.pk) == (0, "Retried 1 job.\n", "")

    assert reread(job).state == JobState.RETRY
    assert jobs("resume_operation", operation.pk).out == f"Operation {operation.pk} has ended: 1 job changed.\n"


def test_an_operation_that_does_not_exist_is_bad_input(queue):
    said = jobs("resume_operation", uuid7())

    assert said.code == 2
    assert "there is no operation" in said.error


def test_an_operation_that_another_operator_stops_says_how_to_continue_it(queue, monkeypatch):
    monkeypatch.setattr("django_jobqueue.services.operations.AT_ONCE", 1)
    for _ in range(3):
        JobFactory(queue=queue, state=JobState.FAILED)

    def stop_after_the_first(execute, sql, params, many, context):
        found = execute(sql, params, many, context)
        if sql.startswith('UPDATE "jobqueue_operation"') and '"moved"' in sql:
            with connection.execute_wrapper(lambda execute, *args: execute(*args)):
                Operation.objects.filter(state="running").update(state="stopped")
        return found

    with connection.execute_wrapper(stop_after_the_first):
        said = jobs("retry", "--queue", queue.name)

    id = Operation.objects.get().pk
    assert said.code == 1
    assert said.out == (
        f"Retried 1 job.\nOperation {id} is stopped; manage.py jobs resume_operation {id} continues it.\n"
    )


# --------------------------------------------------------------------------------------------------------- real ones


@contextmanager
def retrying(queue: str) -> Iterator[subprocess.Popen[str]]:
    """``jobs retry --queue`` in a process of its own that has done one bit and waits in the second for a locked job."""
    name = str(connection.settings_dict["NAME"])
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "JOBQUEUE_TEST_DSN": make_conninfo(os.environ.get("JOBQUEUE_TEST_DSN", ""), dbname=name),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "django", "jobs", "retry", "--queue", queue, "--reason", "fixed"]
    held = Job.objects.order_by("seq").values_list("pk", flat=True)[700]
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=held)
        with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            try:
                until(has_moved, "the first bit is committed", seconds=60)
                until(waits_for_a_lock, "the second bit waits", seconds=60)
                yield process
            finally:
                process.kill()
                process.wait(10)


def has_moved() -> bool:
    return Operation.objects.filter(moved=500).exists()


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # otherwise it returns the same within one transaction
        cursor.execute(WAITS)
        return bool(cursor.fetchone()[0])


@pytest.fixture
def many(queue):
    """Jobs that failed for good, each with no retries left."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, policy, singleton_key, state, finalized_at, error, retry_limit) "
            "SELECT gen_random_uuid(), %s, 'standard', '', 'failed', now(), 'broken', 0 FROM generate_series(1, %s)",
            [queue.name, NUMBER],
        )
    return Job.objects.order_by("seq")


@pytest.mark.django_db(transaction=True)
def test_a_killed_retry_is_finished_later_and_retries_no_job_twice(queue, many):
    with retrying(queue.name) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    (operation,) = Operation.objects.all()
    until(lambda: not waits_for_a_lock(), "the session of the killed process has ended")
    assert (operation.state, operation.moved) == ("running", 500)
    (again,) = services.fetch(queue.name)  # of those that were retried
    services.fail(again, "it failed again", for_good=True)
    left_alone(operation)

    assert advance_operations() == {"retry": NUMBER - 500}

    operation.refresh_from_db()
    assert (operation.state, operation.moved, operation.refused) == ("done", NUMBER, 0)
    assert operation.details["came_later"] == 1
    assert reread(again).state == JobState.FAILED
    assert set(many.exclude(pk=again.pk).values_list("state", "retry_limit")) == {("retry", 1)}


@pytest.mark.django_db(transaction=True)
def test_ctrl_c_stops_the_operation_and_says_how_to_continue_it(queue, many):
    with retrying(queue.name) as process:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)

    (operation,) = Operation.objects.all()
    assert process.returncode == 130
    assert "Interrupted." in error
    assert f"jobs resume_operation {operation.pk} continues it" in error
    assert (operation.state, operation.moved) == ("stopped", 500)
    left_alone(operation)
    assert advance_operations() == {}  # the operator wants it to stop

    assert jobs("resume_operation", operation.pk).out == f"Retried {NUMBER:,} jobs.\n"
    assert set(many.values_list("state", "retry_limit")) == {("retry", 1)}
