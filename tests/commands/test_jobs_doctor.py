"""``manage.py jobs doctor``."""

from __future__ import annotations

import pytest
from django.db import connection

from django_jobqueue.states import JobState
from tests.factories import JobFactory

from .calling import jobs


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.mark.django_db
def test_notices_alone_are_no_reason_to_wake_anybody(untouched_table):
    said = jobs("doctor", "--json")

    assert said.code == 0
    assert {finding["level"] for finding in said.json["findings"]} <= {"notice"}
    assert said.json["repairs"] == []


@pytest.mark.django_db
def test_findings_are_printed_with_their_fix_and_an_exit_code(fifo_queue):
    JobFactory(queue=fifo_queue, state=JobState.FAILED)

    said = jobs("doctor")

    assert said.code == 1
    assert "warning  1 blocked key in 'orders'" in said.out
    assert "Fix: manage.py jobs blocked orders" in said.out
    (finding,) = [one for one in jobs("doctor", "--json").json["findings"] if one["code"] == "blocked_keys"]
    assert finding["facts"]["keys"] == 1
    assert finding["repairable"] is False


@pytest.mark.django_db(transaction=True)
def test_with_fix_a_missing_index_is_built_and_reported(untouched_table):  # R062 R063 B21
    execute("DROP INDEX jobqueue_job_group")
    assert jobs("doctor").code == 1

    said = jobs("doctor", "--fix")

    assert said.code == 0
    assert said.out.startswith("repaired  The index jobqueue_job_group is missing")
    again = jobs("doctor", "--fix", "--json")
    assert (again.code, again.json["repairs"]) == (0, [])


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_repaired_says_why(untouched_table, fifo_queue):
    execute("DROP INDEX jobqueue_job_one_blocker_per_key")
    for _ in range(2):
        JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="a")
    try:
        said = jobs("doctor", "--fix", "--json")
        told = jobs("doctor", "--fix")
    finally:
        execute("DELETE FROM jobqueue_job")
        last = jobs("doctor", "--fix")

    (failed,) = [one for one in said.json["repairs"] if not one["done"]]
    assert said.code == 1
    assert "could not create unique index" in failed["text"]
    assert "not repaired" in told.out
    assert last.code == 0
