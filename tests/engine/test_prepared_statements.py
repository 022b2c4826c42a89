"""Prepared statements: which statements are prepared, and that only their duration differs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobqueue import services
from django_jobqueue.engine import prepared_statements, transactions
from django_jobqueue.models import Queue
from django_jobqueue.services import finish_many
from django_jobqueue.states import JobState
from tests.past import reread

pytestmark = pytest.mark.django_db(transaction=True)

OFTEN = transactions.AFTER + 3


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    connection.close()
    yield
    transactions.names.forget()
    connection.close()


def work_on_one(queue: Queue, key: str | None = None) -> None:
    sent = services.send(queue.name, {"n": 1}, singleton_key=key)
    (job,) = services.fetch(queue.name)
    assert sent is not None
    assert (job.pk, job.data, job.attempt) == (sent.pk, {"n": 1}, 1)
    assert finish_many([(job, "done")], hand_over=True).completed == [job.pk]
    assert (reread(job).state, reread(job).output) == (JobState.COMPLETED, "done")


def names() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        return {name for (name,) in cursor.fetchall()}


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def executed(queue: Queue, key: str | None = None) -> bool:
    """Whether any statement of a whole turn is sent by name."""
    with CaptureQueriesContext(connection) as queries:
        work_on_one(queue, key)
    return any("EXECUTE jobqueue_" in query["sql"] for query in queries)


@pytest.mark.parametrize("key", (None, "a"))
def test_what_a_connection_is_asked_for_often_gets_a_name(queue, fifo_queue, key):
    target = fifo_queue if key else queue
    for _ in range(transactions.AFTER):
        assert not executed(target, key)
    assert names() == set()

    for _ in range(3):
        assert executed(target, key)

    assert names()
    connection.close()
    assert not executed(target, key), "a new connection knows no names"


def test_a_batch_of_any_size_has_the_same_name(queue):
    for size in range(1, OFTEN + 5):
        services.send_many(queue.name, [{}] * size)
        assert len(services.fetch(queue.name, size)) == size
        before = names()

    assert before == names() != set()


@pytest.mark.parametrize("key", (None, "a"))
def test_a_connection_without_the_names_costs_only_a_second_try(queue, fifo_queue, key, caplog):  # G13 F33
    target = fifo_queue if key else queue
    for _ in range(OFTEN):
        work_on_one(target, key)
    execute("DEALLOCATE ALL")  # as when a pooler gives the next transaction another connection of the server

    with caplog.at_level("INFO", "django_jobqueue"):
        work_on_one(target, key)

    (record,) = caplog.records
    assert record.message.startswith("prepared statements are not kept")
    assert not executed(target, key)


def test_a_name_that_another_client_gave_on_the_same_connection_is_no_obstacle(queue):  # G13 F33
    for _ in range(OFTEN):
        work_on_one(queue)
    transactions.names.uses.clear()

    for _ in range(OFTEN):
        work_on_one(queue)

    assert not executed(queue)


def test_the_caller_s_transaction_is_never_put_at_risk(queue):
    with transaction.atomic():
        for _ in range(OFTEN):
            assert not executed(queue)
    assert names() == set()


def test_who_says_that_there_is_a_pooler_is_believed(queue, settings):
    settings.JOBQUEUE = {"POOLER": True}
    for _ in range(OFTEN):
        assert not executed(queue)


def test_who_says_so_to_django_is_believed(queue, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    for _ in range(OFTEN):
        assert not executed(queue)


def test_only_so_many_statements_get_a_name(queue, monkeypatch):
    monkeypatch.setattr(transactions, "MOST", 1)
    for _ in range(OFTEN):
        work_on_one(queue)

    assert len(names()) == 1


@pytest.mark.parametrize(
    ("sql", "prepared", "executed"),
    (
        ("SELECT %s || '100%%' || %s", "SELECT $1 || '100%' || $2", "(%s, %s)"),
        ("SELECT %(b)s, %(a)s, %(b)s", "SELECT $1, $2, $1", "(%(b)s, %(a)s)"),
        ("SELECT 1", "SELECT 1", ""),
    ),
)
def test_placeholders_become_numbers(sql, prepared, executed):
    named = prepared_statements.prepared(sql)

    name = named.execute.removeprefix("EXECUTE ").partition("(")[0]
    assert named.prepare == f"PREPARE {name} AS {prepared}"
    assert named.execute == f"EXECUTE {name}{executed}"


@pytest.mark.parametrize("key", ('a"b', "a\\b", "{a,b}", "NULL", "a'b", "ä\n\t, "))
def test_keys_reach_the_server_as_they_are(fifo_queue, key):
    for _ in range(2):
        work_on_one(fifo_queue, key)
    first, second = (services.send(fifo_queue.name, singleton_key=key) for _ in range(2))
    (job,) = services.fetch(fifo_queue.name, 2)

    (handed,) = finish_many([(job, None)], hand_over=True).next

    assert (job.pk, handed.pk) == (first.pk, second.pk)  # type: ignore[union-attr]
