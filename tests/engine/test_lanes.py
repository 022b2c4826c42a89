"""Which lanes a transaction locks itself, and which it leaves to a later one."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobqueue.engine.lanes import MOST_KEYS, Lane, Locked, lanes_of
from django_jobqueue.models import Job
from django_jobqueue.policies import LANED, QueuePolicy


def lanes(number: int) -> set[Lane]:
    return {Lane("q", QueuePolicy.SINGLETON, f"{place}") for place in range(number)}


def test_only_jobs_of_policies_with_lanes_have_one():
    jobs = [Job(queue_id="q", policy=policy, singleton_key="a") for policy in QueuePolicy]

    assert lanes_of(jobs) == {Lane("q", policy, "a") for policy in LANED}


@pytest.mark.django_db
def test_a_transaction_locks_only_so_many_keys():
    assert not Locked("default", lanes(MOST_KEYS)).later
    assert Locked("default", lanes(MOST_KEYS + 1)).later


@pytest.mark.django_db(transaction=True)
def test_a_strict_transaction_leaves_all_lanes_to_a_later_one():
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

        assert Locked("default", lanes(1)).later


@pytest.mark.django_db
@pytest.mark.parametrize("number", (0, MOST_KEYS + 1), ids=("no lanes", "too many lanes"))
def test_nothing_is_locked_for_no_lanes_or_too_many(number):
    with CaptureQueriesContext(connection) as queries:
        Locked("default", lanes(number))

    assert queries.captured_queries == []
