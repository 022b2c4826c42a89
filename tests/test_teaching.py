"""Errors that teach: what a beginner does wrong in the first five minutes, and what they are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection, connections, transaction

from django_jobqueue import handlers, job, services
from django_jobqueue.database_errors import explain
from django_jobqueue.engine import databases
from django_jobqueue.exceptions import InvalidData, QueueNotFound

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_handlers() -> Iterator[None]:
    with handlers.registry.restored(empty=True):
        yield


@pytest.fixture
def handler(queue) -> None:
    job(queue=queue.name, name="there")(lambda: None)


@pytest.fixture
def sqlite() -> Iterator[str]:
    given = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}
    connections.settings["lite"] = {**connections.settings["default"], **given}
    yield "lite"
    del connections["lite"]
    del connections.settings["lite"]


@pytest.fixture
def unmigrated(db) -> Iterator[None]:
    """As before migrate: our tables have other names, until the test ends."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE jobqueue_queue RENAME TO not_yet")
        yield
        transaction.set_rollback(True)


def test_a_worker_without_handlers_is_told_where_they_are_looked_for(queue):
    with pytest.raises(CommandError, match=r"No handlers were found\. Decorate a function with @job.*jobs, tasks"):
        call_command("runjobs")


def test_arguments_that_the_handler_does_not_take_are_told_with_its_name():
    @job(queue="work")
    def do_work(speed): ...

    with pytest.raises(TypeError, match=r"^do_work\(\): got an unexpected keyword argument 'spede'$"):
        do_work.send(1, spede=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ("delay", "apply_async", "enqueue"))
def test_who_knows_another_queue_is_told_how_jobs_are_sent_here(name):
    @job(queue="work")
    def do_work(): ...

    with pytest.raises(AttributeError, match=rf"A handler has no {name}\(\)\. Send a job: do_work\.send\(…\)\."):
        getattr(do_work, name)

    assert not hasattr(do_work, "send_later")


def test_an_unknown_queue_is_told_with_the_closest(queue):
    with pytest.raises(QueueNotFound, match=r"no queue named 'wrok'\. Did you mean 'work'\?"):
        services.send("wrok")


def test_a_queue_that_was_declared_after_migrate_is_told_so(queue, settings):
    settings.JOBQUEUE = {"QUEUES": {"works": {}}}

    with pytest.raises(QueueNotFound, match=r"no queue named 'works'\. It is declared .* run manage\.py migrate\."):
        services.send("works")


def test_a_worker_for_an_unknown_queue_is_told_the_closest(handler, capsys, monkeypatch):
    monkeypatch.setattr("django_jobqueue.worker.supervisor.Supervisor.run", lambda self: 0)

    with pytest.raises(SystemExit):
        call_command("runjobs", "--queue", "wrok")

    assert (
        "The queue 'wrok' does not exist yet; the worker waits until it does. Did you mean 'work'?"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("verb", (services.send, services.get_queue, services.fetch))
def test_sqlite_is_told_before_anything_else(sqlite, verb):
    with pytest.raises(ImproperlyConfigured, match=r"'lite', which is sqlite, not PostgreSQL\. Use PostgreSQL"):
        verb("work", using=sqlite)
    assert sqlite not in databases.checked.aliases


def test_a_worker_on_sqlite_is_told(sqlite, handler):
    with pytest.raises(CommandError, match="sqlite, not PostgreSQL"):
        call_command("runjobs", "--database", sqlite)


@pytest.mark.parametrize("send", (lambda: services.send("work"), lambda: services.send_many("work", [{}])))
def test_missing_migrations_are_told(unmigrated, send):
    with pytest.raises(ImproperlyConfigured, match=r"missing or old.*run manage\.py migrate"), transaction.atomic():
        send()


def test_a_worker_without_migrations_is_told(unmigrated):
    job(queue="work", name="there")(lambda: None)

    with pytest.raises(CommandError, match=r"run manage\.py migrate"), transaction.atomic():
        call_command("runjobs")


def test_other_database_errors_are_left_alone(queue):
    with pytest.raises(ProgrammingError, match="nowhere") as caught, transaction.atomic():
        connection.cursor().execute("SELECT * FROM nowhere")

    explain(caught.value)

    assert str(caught.value).startswith('relation "nowhere"')


def test_a_model_sent_instead_of_its_id_is_told(queue):
    with pytest.raises(
        InvalidData, match=r"data\.group: a value of type Group is not JSON\. Send its pk and load the row"
    ):
        services.send(queue.name, {"group": Group(name="a")})


def test_a_job_that_nobody_works_on_says_so(queue):
    sent = services.send(queue.name)
    assert sent is not None

    assert "start one with manage.py runjobs" in services.why(sent)
