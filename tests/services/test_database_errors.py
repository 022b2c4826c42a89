"""What a verb or command says if the database is missing, or its tables or rights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import InternalError, OperationalError, ProgrammingError, connection, connections, transaction
from django.db.models.signals import pre_migrate
from psycopg import errors

from django_jobqueue import handlers, job, services
from django_jobqueue.database_errors import RIGHTS, explain, explanation
from django_jobqueue.engine.databases import execute
from django_jobqueue.models import Job
from django_jobqueue.worker.options import WorkerOptions
from django_jobqueue.worker.start_check import check_database

Call = Callable[[str], Any]
VERBS: dict[str, Call] = {
    "send": lambda using: services.send("default", using=using),
    "asend": lambda using: async_to_sync(services.asend)("default", using=using),
    "fail": lambda using: services.fail(uuid4(), "error", queue="default", using=using),
    "finish_many": lambda using: services.finish_many([(Job(queue_id="default", attempt=1), None)], using=using),
    "skip": lambda using: services.skip(uuid4(), reason="tried", using=using),
    "send_due": lambda using: services.send_due(using=using),
    "send_many": lambda using: services.send_many("default", [{}], using=using),
    "fetch": lambda using: services.fetch("default", using=using),
    "pause": lambda using: services.pause("default", using=using),
    "stats": lambda using: services.stats(using=using),
    "create_queue": lambda using: services.create_queue("mails", using=using),
    "run_schedule": lambda using: services.run_schedule("nightly", using=using),
}
COMMANDS: dict[str, Call] = {
    "jobs": lambda using: call_command("jobs", "stats", database=using),
    "runjobs": lambda using: call_command("runjobs", database=using, reload=False),
}
EACH = pytest.mark.parametrize("call", (*VERBS.values(), *COMMANDS.values()), ids=[*VERBS, *COMMANDS])


@pytest.fixture(autouse=True)
def a_handler() -> Iterator[None]:
    with handlers.registry.restored(empty=True):
        job(queue="default", name="there")(lambda: None)
        yield


@pytest.fixture
def other(django_db_blocker: Any) -> Iterator[Callable[..., str]]:
    """A second alias of the test database, with other settings."""

    def with_settings(**settings: Any) -> str:
        connections.databases["other"] = {**connection.settings_dict, **settings}
        return "other"

    with django_db_blocker.unblock():
        yield with_settings
    connections["other"].close()
    del connections["other"]
    del connections.databases["other"]


@pytest.fixture
def no_tables(db: None) -> Iterator[None]:
    """As before migrate: our tables have other names, until the test ends."""
    with transaction.atomic():
        for table in ("queue", "job", "schedule"):
            execute("default", f"ALTER TABLE jobqueue_{table} RENAME TO not_yet_{table}")
        yield
        transaction.set_rollback(True)


@EACH
def test_missing_tables(no_tables, call):
    with (
        pytest.raises(
            (ImproperlyConfigured, CommandError), match=r"^The tables .* missing or old .*: run manage.py migrate\.$"
        ),
        transaction.atomic(),
    ):
        call("default")


@pytest.mark.parametrize("call", VERBS.values(), ids=VERBS)
def test_missing_tables_are_an_error_of_the_database_too(no_tables, call):
    with pytest.raises(ProgrammingError) as caught, transaction.atomic():
        call("default")

    assert isinstance(caught.value.__cause__, errors.UndefinedTable)


def test_missing_tables_while_migrating(no_tables):
    """So it was a data migration."""
    pre_migrate.send(apps.get_app_config("jobqueue"), app_config=apps.get_app_config("jobqueue"), using="default")

    with pytest.raises(ImproperlyConfigured, match=r"needs \('jobqueue', '0001_initial'\) in its dependencies"):
        services.send("default")


@pytest.mark.parametrize("call", VERBS.values(), ids=VERBS)
def test_an_app_that_is_not_installed(no_tables, settings, call):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_jobqueue"]

    with (
        pytest.raises(ImproperlyConfigured, match=r"^'django_jobqueue' is not in INSTALLED_APPS: add it"),
        transaction.atomic(),
    ):
        call("default")


@EACH
@pytest.mark.django_db
def test_missing_rights(call):
    execute("default", "CREATE ROLE jobqueue_app NOLOGIN; SET LOCAL ROLE jobqueue_app")

    with (
        pytest.raises(
            (ImproperlyConfigured, CommandError), match=r"permission denied .* jobqueue_.*GRANT SELECT, INSERT"
        ),
        transaction.atomic(),
    ):
        call("default")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("role", "named"), (("jobqueue_web", "jobqueue_web"), ("shop-web", '"shop-web"')))
def test_the_role_that_lacks_the_rights_is_named_whoever_chose_it(other, role, named):
    execute("default", f'CREATE ROLE "{role}" LOGIN')
    try:
        with pytest.raises(ImproperlyConfigured, match=f"ON ALL SEQUENCES IN SCHEMA public TO {named}$"):
            services.send("default", using=other(USER="", OPTIONS={"user": role}))
    finally:
        connections["other"].close()
        execute("default", f'DROP ROLE "{role}"')


@pytest.mark.django_db
def test_the_rights_that_are_named_are_enough(queue):
    execute("default", f"CREATE ROLE jobqueue_app NOLOGIN; {RIGHTS.format(schema='public', role='jobqueue_app')}")
    execute("default", "SET LOCAL ROLE jobqueue_app")

    services.send(queue.name)
    [job] = services.fetch(queue.name)
    services.complete(job)
    services.cleanup()


@pytest.mark.django_db
def test_a_read_only_database(queue):
    execute("default", "SET LOCAL transaction_read_only = on")

    with pytest.raises(InternalError, match=r"'default' is read-only .*db_for_write"), transaction.atomic():
        services.send(queue.name)


UNREACHABLE = {
    "down": (
        {"HOST": "127.0.0.1", "PORT": 1},
        r"Start PostgreSQL there, or correct HOST and PORT in DATABASES\['other'\]",
    ),
    "host": ({"HOST": "nowhere.invalid"}, r"host is unknown: correct HOST in DATABASES\['other'\]"),
    "database": ({"NAME": "nowhere"}, r"PostgreSQL has no database 'nowhere': create it, or correct NAME"),
    "role": ({"USER": "stranger"}, r"refused the login: correct USER and PASSWORD"),
}


@pytest.mark.parametrize(("wrong", "advice"), UNREACHABLE.values(), ids=UNREACHABLE)
def test_a_database_that_cannot_be_reached(other, wrong, advice):
    using = other(**wrong)
    sentence = rf"^The database 'other' cannot be reached\. .*{advice}.*\)$"

    for verb in VERBS.values():
        with pytest.raises(OperationalError, match=sentence):
            verb(using)
    with pytest.raises(CommandError, match=sentence) as caught:
        COMMANDS["jobs"](using)
    assert caught.value.returncode == 4
    (warning,) = check_database(WorkerOptions.build(using=using)).warnings
    assert warning.startswith("The database does not answer; waiting for it. The database 'other' cannot be reached.")


@pytest.mark.parametrize(
    ("said", "advice"),
    (
        ('connection failed: FATAL:  password authentication failed for user "app"', "correct USER and PASSWORD"),
        ("connection failed: fe_sendauth: no password supplied", "correct USER and PASSWORD"),
        ("connection failed: FATAL:  sorry, too many clients already", "raise max_connections"),
        ("connection failed: FATAL:  the database system is starting up", "try again"),
        ("connection failed: FATAL:  la base n'existe pas", "Start PostgreSQL there"),
    ),
)
def test_what_else_a_server_says_at_the_login(said, advice):
    assert advice in explanation(OperationalError(said), "default")


def test_other_errors_keep_their_text():
    for error in (
        OperationalError("the connection is closed"),
        ProgrammingError("syntax error"),
        ValueError("jobqueue_"),
    ):
        explain(error, "default")

        assert explanation(error, "default") == ""


def test_a_missing_libpq():
    """With an implementation that is not installed, psycopg fails as it does without libpq."""
    environment = {**os.environ, "PSYCOPG_IMPL": "c"}
    command = [sys.executable, "-c", "import django_jobqueue.apps"]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    last = done.stderr.strip().splitlines()[-1]
    assert "ImproperlyConfigured: django_jobqueue needs psycopg 3" in last
    assert "pip install 'psycopg[binary]', or install libpq" in last
