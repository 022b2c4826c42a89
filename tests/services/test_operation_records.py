"""The record of an operation: what it did stays as it is, and its counters only grow, also for SQL by hand."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from django_jobqueue import services
from django_jobqueue.identifiers import uuid7
from django_jobqueue.maintenance import maintain
from django_jobqueue.models import Operation, OperationBatch
from django_jobqueue.services import operations
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, records_unguarded, rewrite_operation

pytestmark = pytest.mark.django_db

# A value for each column that no update may write while the operation runs.
FIXED: dict[str, Any] = {
    "id": uuid7(),
    "verb": "delete",
    "operator": "mallory",
    "reason": "it was not me",
    "queue": "other",
    "schedule": "nightly",
    "selection": "{}",
    "snapshot": "1:1:",
    "confirmation": uuid7(),
    "started_at": "2001-01-01",
}
GROWING = {"moved", "refused", "details"}
FREE = {"state", "cursor", "finished_at"}


def sql(statement: str, *params: Any) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement, params)


def running(**fields: Any) -> Operation:
    """An operation that changed two of its three jobs and refused one."""
    queue = QueueFactory()
    jobs = [JobFactory(queue=queue, state=JobState.FAILED) for _ in range(2)]
    refused = JobFactory(queue=queue)
    operation = services.begin_operation(
        "retry", ids=[job.pk for job in (*jobs, refused)], operator="olga", reason="fixed", **fields
    )
    operation = services.advance_operation(operation)
    return rewrite_operation(operation, state="running", finished_at=None)


def done() -> Operation:
    return rewrite_operation(running(), state="done", finished_at=ago(seconds=1))


def columns(table: str) -> set[str]:
    with connection.cursor() as cursor:
        return {column.name for column in connection.introspection.get_table_description(cursor, table)}


def test_these_tests_know_every_column():
    assert columns("jobqueue_operation") == {*FIXED, *GROWING, *FREE}


@pytest.mark.parametrize("column", FIXED)
def test_who_did_what_when_and_why_cannot_be_changed(column):
    operation = running()

    with pytest.raises(IntegrityError, match="cannot be changed"):
        sql(f"UPDATE jobqueue_operation SET {column} = %s", FIXED[column])

    assert Operation.objects.get().pk == operation.pk


@pytest.mark.parametrize("change", ("moved = moved - 1", "refused = refused - 1", "details = '{}'",
                                    "details = details - 'refused'"))  # fmt: skip
def test_counters_and_details_cannot_shrink(change):
    running()

    with pytest.raises(IntegrityError, match="can only grow"):
        sql(f"UPDATE jobqueue_operation SET {change}")


def test_an_operation_cannot_end_long_ago_so_that_it_could_be_deleted():
    running()

    with pytest.raises(IntegrityError, match="can only end now"):
        sql("UPDATE jobqueue_operation SET state = 'done', finished_at = now() - interval '2 years'")


def test_counters_details_and_progress_can_grow():
    running()

    sql(
        "UPDATE jobqueue_operation SET moved = moved + 1, refused = refused + 1, cursor = '{}', state = 'stopped', "
        "finished_at = statement_timestamp(), details = details || '{\"came_later\": 1}'"
    )

    operation = Operation.objects.get()
    assert (operation.moved, operation.refused, operation.details["came_later"]) == (3, 2, 1)


@pytest.mark.parametrize("column", sorted({*FIXED, *GROWING, *FREE}))
def test_a_record_that_has_ended_cannot_be_changed_at_all(column):
    done()

    with pytest.raises(IntegrityError, match="has ended and cannot be changed"):
        sql(f"UPDATE jobqueue_operation SET {column} = {column}")


@pytest.mark.parametrize("change", ("ids = '{}'", "first_id = last_id", "operation_id = gen_random_uuid()"))
def test_the_jobs_of_an_operation_cannot_be_changed(change):
    running()

    with pytest.raises(IntegrityError, match="cannot be changed"):
        sql(f"UPDATE jobqueue_operationbatch SET {change}")


@pytest.mark.parametrize("table", ("jobqueue_operation", "jobqueue_operationbatch"))
@pytest.mark.parametrize("make", (running, done))
def test_a_record_cannot_be_deleted(make, table):
    make()

    with pytest.raises(IntegrityError, match="cannot be"):
        sql(f"DELETE FROM {table}")

    assert (Operation.objects.count(), OperationBatch.objects.count()) == (1, 1)


def test_maintenance_deletes_the_jobs_of_a_record_after_90_days_and_the_record_after_a_year(monkeypatch):
    young = done()
    for days in (89, 91, 366):
        rewrite_operation(done(), finished_at=ago(days=days))
    stopped = rewrite_operation(running(), state="stopped", finished_at=ago(days=91))
    open_ = rewrite_operation(running(), started_at=ago(days=900), cursor={"place": 9, "advanced_at": None})

    forgotten = maintain()["forget"]

    assert forgotten.error == ""
    assert (forgotten.done["operation_batches"], forgotten.done["operations"]) == (3, 1)
    assert {young.pk, stopped.pk, open_.pk} < set(Operation.objects.values_list("pk", flat=True))
    assert operations.KEEP_JOBS.days == 90
    assert operations.KEEP_OPERATIONS.days == 365


@pytest.mark.parametrize(("table", "days"), (("jobqueue_operation", 364), ("jobqueue_operationbatch", 89)))
def test_nothing_deletes_a_record_before_that(table, days):
    rewrite_operation(done(), finished_at=ago(days=days))

    with pytest.raises(IntegrityError, match="cannot be"):
        sql(f"DELETE FROM {table}")


@pytest.mark.django_db(transaction=True)
def test_flush_empties_the_records():
    running()

    call_command("flush", interactive=False, verbosity=0)

    assert not Operation.objects.exists()
    assert not OperationBatch.objects.exists()


def test_the_triggers_are_on_again_after_a_test_wrote_into_the_past():
    running()
    with records_unguarded():
        pass

    with pytest.raises(IntegrityError):
        sql("DELETE FROM jobqueue_operation")
