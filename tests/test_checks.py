from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.core import checks as django_checks
from django.core.checks import run_checks
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from django_jobqueue import checks, handlers
from django_jobqueue.models import Queue
from django_jobqueue.services import create_queue


class ToSqlite:
    """A router that sends the app to the database ``other``."""

    def db_for_write(self, model, **hints):
        return "other" if model._meta.app_label == "jobqueue" else None


@pytest.fixture
def sqlite(settings):
    """The app is routed to a database ``other`` on SQLite."""
    given = connections.settings["default"] | {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {},
    }
    connections.settings["other"] = given
    settings.DATABASE_ROUTERS = [ToSqlite()]
    yield "other"
    del connections["other"]
    del connections.settings["other"]


def ids(found):
    return [message.id for message in found]


def of_settings():
    return [*checks.check_settings(), *checks.check_queues()]


def test_django_runs_the_checks():
    registered: Any = django_checks.registry.registry

    assert {checks.check_settings, checks.check_queues, checks.check_vendor} <= (registered.registered_checks)
    assert checks.check_databases in registered.registered_checks
    assert "database" in registered.tags_available()


def test_the_database_is_checked_only_when_asked_for():
    # Without the django_db mark, pytest-django fails this test should it connect.
    assert django_checks.run_checks(tags=["jobqueue"], databases=[]) == []


def test_no_settings_are_fine(settings):
    del settings.JOBQUEUE

    assert of_settings() == []


def test_sensible_settings_are_fine(settings):
    settings.JOBQUEUE = {
        "QUEUES": {
            "mail": {"policy": "fifo", "dead_letter": "dead", "heartbeat_seconds": 10},
            "dead": {},
        },
        "ENCODER": "django.core.serializers.json.DjangoJSONEncoder",
    }

    assert of_settings() == []


def test_settings_that_are_no_dict_are_an_error(settings):
    settings.JOBQUEUE = ["QUEUES"]

    assert ids(of_settings()) == ["jobqueue.E001"]


def test_an_unknown_setting_is_an_error_with_the_closest(settings):
    settings.JOBQUEUE = {"NOTIFI": True}

    [error] = of_settings()

    assert error.id == "jobqueue.E002"
    assert "'NOTIFI'" in error.msg
    assert error.hint == "Did you mean 'NOTIFY'?"


def test_a_setting_of_wrong_type_or_size_is_an_error(settings):
    settings.JOBQUEUE = {"MAX_DEPTH": "deep", "MAX_DATA_BYTES": 2**40}

    assert ids(of_settings()) == ["jobqueue.E003", "jobqueue.E003"]


@pytest.mark.parametrize(
    ("options", "told"),
    (
        ({"heartbeat_seconds": 9}, "heartbeat_seconds: must be at least 10"),  # R107
        ({"expire_in_seconds": 0}, "expire_in_seconds: must be at least 1"),  # R117
        ({"retention_seconds": 0}, "retention_seconds: must be at least 1"),  # R119
        ({"retry_limit": "many"}, "retry_limit: expected an int"),
        ({"policy": "lifo"}, "policy: expected"),
        ({"retryLimit": 1}, "retryLimit: there is no such option"),
        ([], "must be a dict of options"),
        (None, "must be a dict of options"),
    ),
)
def test_a_queue_with_a_wrong_option_is_an_error_that_names_both(settings, options, told):
    settings.JOBQUEUE = {"QUEUES": {"mail": options}}

    [error] = of_settings()

    assert error.id == "jobqueue.E004"
    assert "JOBQUEUE['QUEUES']['mail']" in error.msg
    assert told in error.msg


def test_every_wrong_option_is_told(settings):
    settings.JOBQUEUE = {"QUEUES": {"a": {"heartbeat_seconds": 1, "expire_in_seconds": 0}, "b": {"partition": 1}}}

    assert ids(of_settings()) == ["jobqueue.E004"] * 3


def test_all_errors_are_told_in_one_run(settings):
    settings.JOBQUEUE = {
        "QUEUSE": {},
        "MAX_DEPTH": "deep",
        "ENCODER": "no.such.Encoder",
        "AROUND": "no.such.function",
        "CARRY": ["no.such.Carrier", "no.other.Carrier"],
        "WORKER_LOST_SECONDS": 1.0,
        "QUEUE_DEFAULTS": {"retry_limit": -1},
        "QUEUES": {
            "wrong": {"retry_dely": 3},
            "a": {"dead_letter": "b", "priority": 1},
            "b": {"dead_letter": "a"},
            "c": {"dead_letter": "missing"},
            "d": {"dead_letter": "e"},
            "e": {"policy": "short"},
            "ordered": {"policy": "key_strict_fifo"},
        },
        "SCHEDULES": {
            "no dict": 7,
            "wrong": {"queue": "a", "cron": "never", "timezone": "Mars/Base", "data": {1}},
            "nowhere": {"queue": "oredred", "cron": "* * * * *"},
            "no key": {"queue": "ordered", "cron": "* * * * *", "data": {"a": 1}},
            "no handler": {"queue": "a", "cron": "* * * * *", "handler": "shop.jobs.missing"},
        },
    }

    found = ids(run_checks(tags=["jobqueue"], databases=[]))

    assert sorted(found) == [
        "jobqueue.E002",
        "jobqueue.E003",
        *["jobqueue.E004"] * 3,
        "jobqueue.E005",
        "jobqueue.E006",
        "jobqueue.E008",
        *["jobqueue.E011"] * 2,
        "jobqueue.E012",
        "jobqueue.E013",
        "jobqueue.E014",
        "jobqueue.E015",
        "jobqueue.E016",
        *["jobqueue.E020"] * 2,
        "jobqueue.E025",
        "jobqueue.W001",
    ]


def test_data_of_a_schedule_is_checked_although_a_setting_is_wrong(settings):
    schedule = {"queue": "default", "cron": "* * * * *", "data": {"a": {1, 2}}}
    settings.JOBQUEUE = {"MAX_DEPTH": "deep", "SCHEDULES": {"nightly": schedule}}

    [found] = checks.check_schedules()

    assert "a value of type set is not JSON" in found.msg


def test_times_are_not_compared_with_a_wrong_one(settings):
    settings.JOBQUEUE = {"WORKER_LOST_SECONDS": "soon", "WORKER_UNLOCKED_SECONDS": 90.0}

    assert ids(of_settings()) == ["jobqueue.E003"]


def test_a_wrong_name_of_a_queue_is_an_error(settings):
    settings.JOBQUEUE = {"QUEUES": {"a;b": {}, 5: {}}}

    found = of_settings()

    assert ids(found) == ["jobqueue.E004"] * 2
    assert "queue name: ';' is not allowed" in found[0].msg


def test_a_wrong_default_of_queues_is_an_error(settings):
    settings.JOBQUEUE = {"QUEUE_DEFAULTS": {"expire_in_seconds": 0}}

    [error] = of_settings()

    assert error.id == "jobqueue.E004"
    assert "QUEUE_DEFAULTS" in error.msg


def test_a_dead_letter_that_is_not_declared_is_a_warning(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {"dead_letter": "dead"}}}

    [warning] = of_settings()

    assert warning.id == "jobqueue.W001"
    assert "'dead'" in warning.msg
    assert "'mail'" in warning.msg


@pytest.mark.parametrize(
    ("targets", "circle"),
    (
        ({"a": "a"}, "a → a"),
        ({"a": "b", "b": "a"}, "a → b → a"),
        ({"x": "a", "a": "b", "b": "c", "c": "a"}, "a → b → c → a"),
    ),
)
def test_dead_letters_in_a_circle_are_one_error(settings, targets, circle):
    settings.JOBQUEUE = {"QUEUES": {name: {"dead_letter": to} for name, to in targets.items()}}

    [error] = of_settings()

    assert error.id == "jobqueue.E005"
    assert circle in error.msg


def test_two_circles_of_dead_letters_are_two_errors(settings):
    targets = {"a": "b", "b": "a", "c": "c"}
    settings.JOBQUEUE = {"QUEUES": {name: {"dead_letter": to} for name, to in targets.items()}}

    assert ids(of_settings()) == ["jobqueue.E005"] * 2


def test_the_dead_letter_of_all_queues_has_none_itself(settings):
    settings.JOBQUEUE = {
        "QUEUES": {"dead": {}, "mail": {}},
        "QUEUE_DEFAULTS": {"dead_letter": "dead"},
    }

    assert of_settings() == []


@pytest.mark.parametrize("policy", ("short", "singleton", "stately", "exclusive"))
def test_a_dead_letter_queue_that_could_refuse_copies_is_an_error(settings, policy):  # B35
    settings.JOBQUEUE = {"QUEUES": {"mail": {"dead_letter": "dead"}, "dead": {"policy": policy}}}

    [error] = of_settings()

    assert error.id == "jobqueue.E006"
    assert repr(policy) in error.msg


@pytest.mark.parametrize("policy", ("standard", "key_strict_fifo", "fifo"))
def test_a_dead_letter_queue_may_be_standard_or_ordered(settings, policy):  # B35
    settings.JOBQUEUE = {"QUEUES": {"mail": {"dead_letter": "dead"}, "dead": {"policy": policy}}}

    assert of_settings() == []


@pytest.mark.parametrize("path", ("nowhere.Encoder", "json.dumps"))
def test_an_encoder_that_is_none_is_an_error(settings, path):
    settings.JOBQUEUE = {"ENCODER": path}

    [error] = of_settings()

    assert error.id == "jobqueue.E008"
    assert path in error.msg


@pytest.mark.parametrize(
    ("given", "told"),
    (
        ({"WORKER_FENCE_SECONDS": 12.5}, "UNLOCKED_SECONDS'] is 13; with JOBQUEUE['WORKER_FENCE_SECONDS'] = 12.5"),
        ({"WORKER_UNLOCKED_SECONDS": 30.0}, "LOST_SECONDS'] is 27; with JOBQUEUE['WORKER_UNLOCKED_SECONDS'] = 30"),
        ({"WORKER_HEARTBEAT_SECONDS": 5.5}, "FENCE_SECONDS'] is 10; with JOBQUEUE['WORKER_HEARTBEAT_SECONDS'] = 5.5"),
        ({"STOP_GRACE_SECONDS": 6}, "STOP_GRACE_SECONDS'] is 6; with JOBQUEUE['EXPIRE_GRACE_SECONDS'] = 5 it must"),
    ),
)
def test_times_of_workers_that_contradict_each_other_are_an_error(settings, given, told):  # G2
    settings.JOBQUEUE = given

    [error] = of_settings()

    assert error.id == "jobqueue.E015"
    assert told in error.msg


def test_what_is_told_to_set_is_accepted(settings):  # F81
    settings.JOBQUEUE = {"STOP_GRACE_SECONDS": 6, "EXPIRE_GRACE_SECONDS": 3.5}

    [error] = of_settings()
    assert "Set STOP_GRACE_SECONDS to 8 or more, or EXPIRE_GRACE_SECONDS to 2 or less." in error.hint

    settings.JOBQUEUE = {"STOP_GRACE_SECONDS": 2}
    [error] = of_settings()
    assert error.hint.endswith("Set STOP_GRACE_SECONDS to 9 or more.")

    for given in ({"STOP_GRACE_SECONDS": 8}, {"EXPIRE_GRACE_SECONDS": 2.0}):
        settings.JOBQUEUE = {"STOP_GRACE_SECONDS": 6, "EXPIRE_GRACE_SECONDS": 3.5} | given
        assert of_settings() == []


def test_a_hook_that_cannot_be_imported_is_an_error(settings):
    settings.JOBQUEUE = {"AROUND": "no.such.hook"}

    [error] = of_settings()

    assert error.id == "jobqueue.E016"
    assert "no.such.hook" in error.msg


def test_postgresql_is_fine_and_needs_no_connection():
    # Without the django_db mark, pytest-django fails this test should it connect.
    assert checks.check_vendor() == []


def test_another_database_is_an_error(sqlite):
    [error] = checks.check_vendor()

    assert error.id == "jobqueue.E007"
    assert "'other', which is sqlite" in error.msg


@pytest.mark.django_db
def test_a_recent_server_is_fine():
    assert checks.check_databases(databases=["default"]) == []


@pytest.mark.django_db
def test_an_old_server_is_an_error(monkeypatch):
    monkeypatch.setitem(connections["default"].__dict__, "pg_version", 140_011)

    [error] = checks.check_databases(databases=["default"])

    assert error.id == "jobqueue.E009"
    assert "PostgreSQL 14" in error.msg


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("stored", "declared", "told"),
    (
        ({"policy": "standard"}, {"policy": "fifo"}, "policy='standard'"),  # R124
        ({"policy": "key_strict_fifo"}, {}, "policy='key_strict_fifo'"),
        ({"partition": False}, {"partition": True}, "partition=False"),  # R124
    ),
)
def test_a_declared_queue_that_differs_from_its_row_is_an_error(settings, stored, declared, told):
    Queue.objects.create(name="mail", **stored)
    settings.JOBQUEUE = {"QUEUES": {"mail": declared}}

    [error] = checks.check_databases(databases=["default"])

    assert error.id == "jobqueue.E010"
    assert "'mail'" in error.msg
    assert told in error.msg


@pytest.mark.django_db
def test_a_declared_queue_like_its_row_or_without_one_is_fine(settings):
    Queue.objects.create(name="mail", policy="key_strict_fifo")
    settings.JOBQUEUE = {"QUEUES": {"mail": {"policy": "fifo"}, "new": {"policy": "short"}}}

    assert checks.check_databases(databases=["default"]) == []


@pytest.mark.django_db
def test_wrong_settings_are_not_compared_with_rows(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {"policy": "lifo"}}}

    assert checks.check_databases(databases=["default"]) == []


@pytest.mark.django_db
def test_more_than_50_partitions_are_a_warning():
    Queue.objects.bulk_create(Queue(name=f"q{n}", partition=True) for n in range(50))
    assert checks.check_databases(databases=["default"]) == []

    Queue.objects.create(name="q50", partition=True)
    assert ids(checks.check_databases(databases=["default"])) == ["jobqueue.W002"]


@pytest.mark.django_db
def test_a_database_without_the_table_is_fine(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {"policy": "fifo"}}}
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER TABLE "{Queue._meta.db_table}" RENAME TO elsewhere')

    with CaptureQueriesContext(connection) as queries:
        assert checks.check_databases(databases=["default"]) == []
    assert all(Queue._meta.db_table not in query["sql"] for query in queries)


@pytest.mark.django_db
def test_a_table_that_lacks_a_column_is_fine_and_the_transaction_goes_on(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {"policy": "fifo"}}}
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER TABLE "{Queue._meta.db_table}" RENAME COLUMN partition TO gone')

    assert checks.check_databases(databases=["default"]) == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@pytest.mark.django_db
def test_a_project_needs_no_further_app():
    """Since Django 6.0 the fields and indexes of PostgreSQL ask for django.contrib.postgres."""
    assert "django.contrib.postgres" not in settings.INSTALLED_APPS

    assert [found for found in run_checks() if found.is_serious()] == []


@pytest.fixture
def handlers_of_test():
    with handlers.registry.restored(empty=True):
        yield


@pytest.mark.django_db
@pytest.mark.usefixtures("handlers_of_test")
def test_a_handler_for_a_misspelled_queue_is_a_warning(settings):
    settings.JOBQUEUE = {"QUEUES": {"mails": {}}}
    handlers.job(queue="mials", name="greet")(lambda: None)

    (plain,) = checks.check_handlers(databases=None)
    (asked,) = checks.check_handlers(databases=["default"])

    assert (plain.id, plain.hint) == ("jobqueue.W010", "Did you mean 'mails'?")
    assert plain.msg == "The handler 'greet' is for the queue 'mials', which is not declared."
    assert (asked.id, asked.hint) == ("jobqueue.W010", "Did you mean 'mails'?")
    assert "does not exist" in asked.msg


@pytest.mark.django_db
@pytest.mark.usefixtures("handlers_of_test")
def test_a_handler_for_a_queue_that_exists_or_is_declared_is_fine(settings):
    settings.JOBQUEUE = {"QUEUES": {"mails": {}}}
    create_queue("mail")
    for name in ("default", "mails", "mail"):
        handlers.job(queue=name, name=name)(lambda: None)

    assert checks.check_handlers(databases=["default"]) == []


@pytest.mark.usefixtures("handlers_of_test")
def test_without_the_database_a_queue_with_a_name_of_its_own_is_fine(settings):
    """It may have been created at run time."""
    settings.JOBQUEUE = {"QUEUES": {"mails": {}}}
    handlers.job(queue="reports", name="report")(lambda: None)

    assert checks.check_handlers(databases=None) == []


@pytest.mark.django_db
@pytest.mark.usefixtures("handlers_of_test")
def test_a_handler_for_a_queue_that_nobody_knows_is_a_warning_where_the_database_is_asked(settings):
    settings.JOBQUEUE = {"QUEUES": {"mails": {}}}
    create_queue("default")
    handlers.job(queue="reports", name="report")(lambda: None)

    (message,) = checks.check_handlers(databases=["default"])

    assert message.hint == "Declare it in JOBQUEUE['QUEUES'], or create it."


def test_psycopg2_beside_psycopg_is_said(tmp_path, monkeypatch):
    assert checks.check_driver() == []

    (tmp_path / "psycopg2.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    (message,) = checks.check_driver()
    assert (message.id, message.level) == ("jobqueue.I001", django_checks.INFO)
    assert "Django uses psycopg 3 for all databases" in message.msg


URL = "must be a URL that begins with https:// or http://"
SECONDS = "must be a number of seconds from 1 to 86,400"


@pytest.mark.parametrize(
    ("options", "problem"),
    (
        ({"mails": ["ops@example.com"]}, "['mails'] is not an option"),
        ({"mail": "ops@example.com"}, "['mail'] must be a list of mail addresses"),
        ({"mail": ["ops"]}, "['mail'] contains 'ops', which is not a mail address"),
        ({"webhook": "file:///x"}, f"['webhook'] {URL}"),
        ({"webhook": 7}, f"['webhook'] {URL}"),
        ({"webhook": "http://[::1"}, f"['webhook'] {URL}"),
        ({"webhook": "http://a:b@x/"}, "['webhook'] must not contain a user name or password"),
        ({"mail": ["a@b.cd"], "url": "/admin/"}, f"['url'] {URL}"),
        ({"mail": ["a@b.cd"], "after_seconds": 0}, f"['after_seconds'] {SECONDS}"),
        ({"mail": ["a@b.cd"], "after_seconds": True}, f"['after_seconds'] {SECONDS}"),
        ({"url": "http://x/"}, " has neither 'mail' nor 'webhook', so operators are not told of problems"),
    ),
)
def test_wrong_options_of_alerts_are_errors_with_an_example(settings, options, problem):
    settings.JOBQUEUE = {"ALERTS": options}

    (error,) = [each for each in checks.check_settings() if each.msg == f"JOBQUEUE['ALERTS']{problem}."]

    assert error.id == "jobqueue.E026"
    assert error.hint


def test_right_options_of_alerts_are_no_error(settings):
    hook = "https://hooks.example.com/x"
    settings.JOBQUEUE = {"ALERTS": {"mail": ["ops@example.com"], "webhook": hook, "url": "http://x/admin"}}

    assert checks.check_settings() == []
