"""What ``migrate`` makes on a new database: for data migrations, without migrations, and beside other databases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections

from django_jobqueue import services
from django_jobqueue.engine.databases import execute, rows
from django_jobqueue.exceptions import QueueNotFound
from django_jobqueue.models import Job, Queue
from django_jobqueue.partitions import partition_name

DATA_MIGRATION = "tests.data_migration"
QUEUES = {"reports": {"dead_letter": "letters"}, "letters": {}, "own": {"partition": True}}

# Everything that PostgreSQL knows about our relations, by names instead of by numbers.
CATALOGUES = (
    """SELECT c.relname, c.relkind, c.relpersistence, c.reloptions, t.reloptions, pg_get_expr(c.relpartbound, c.oid),
        pg_get_partkeydef(c.oid) FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
        WHERE c.relname LIKE 'jobqueue%%' ORDER BY c.relname""",
    """SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
        a.attstorage, a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relname LIKE 'jobqueue%%' AND a.attnum > 0 ORDER BY 1, 2""",
    """SELECT conrelid::regclass::text, conname, contype, convalidated, condeferrable, condeferred,
        pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid::regclass::text LIKE 'jobqueue%%' ORDER BY 1, 2""",
    """SELECT indrelid::regclass::text, indexrelid::regclass::text, indisvalid, pg_get_indexdef(indexrelid)
        FROM pg_index WHERE indrelid::regclass::text LIKE 'jobqueue%%' ORDER BY 1, 2""",
    """SELECT sequencename, data_type::text, start_value, increment_by, cycle, cache_size FROM pg_sequences
        WHERE sequencename LIKE 'jobqueue%%' ORDER BY 1""",
    """SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger
        WHERE tgrelid::regclass::text LIKE 'jobqueue%%' AND NOT tgisinternal ORDER BY 1, 2""",
    "SELECT proname, prosrc FROM pg_proc WHERE proname LIKE 'jobqueue%%' ORDER BY 1",
)


def catalogues(using: str) -> list[Any]:
    return [rows(using, query, []) for query in CATALOGUES]  # with parameters, because of the double percent signs


def migrate(*labels: str, **options: Any) -> None:
    call_command("migrate", *labels, database="other", verbosity=0, **options)


def sent(using: str = "other") -> dict[str, str]:
    return {job.data["by"]: job.queue_id for job in Job.objects.using(using)}


@pytest.fixture
def sqlite(django_db_blocker: Any) -> Iterator[str]:
    connections.databases["other"] = connections.configure_settings(
        {
            "default": connections.databases["default"],
            "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        }
    )["other"]
    with django_db_blocker.unblock():
        try:
            yield "other"
        finally:
            if connections["other"].connection is not None:
                connections["other"].connection.close()  # Django keeps a database in memory open
            del connections["other"]
            del connections.databases["other"]


# ----------------------------------------------------------------------------------------------- without migrations


@pytest.mark.django_db
@pytest.mark.parametrize("modules", ({"jobqueue": None}, None), ids=("ours", "every"))
def test_without_migrations_the_tables_are_the_same(other_database, settings, modules):
    settings.MIGRATION_MODULES = modules or {app.label: None for app in apps.get_app_configs()}

    migrate(run_syncdb=True)
    migrate(run_syncdb=True)

    made, migrated = catalogues("other"), catalogues("default")
    assert all(migrated[:5])
    assert made == migrated
    assert services.send("default", using="other") is not None


class OnlyDefault:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "default" if app_label == "jobqueue" else None


@pytest.mark.parametrize("modules", ({}, {"jobqueue": None}), ids=("migrations", "syncdb"))
def test_no_table_is_made_where_the_router_wants_none(other_database, settings, modules):
    settings.MIGRATION_MODULES = modules
    settings.DATABASE_ROUTERS = [OnlyDefault()]

    migrate(run_syncdb=True)

    assert not any(catalogues("other"))


@pytest.mark.parametrize("modules", ({}, {"jobqueue": None}), ids=("migrations", "syncdb"))
def test_a_second_database_that_is_not_postgresql_is_left_alone(sqlite, settings, modules):
    settings.MIGRATION_MODULES = modules

    migrate(run_syncdb=True)
    if not modules:
        migrate("jobqueue", "zero")

    tables = connections[sqlite].introspection.table_names()
    assert "auth_user" in tables
    assert not [table for table in tables if table.startswith("jobqueue")]


# -------------------------------------------------------------------------------------------------- data migrations


@pytest.fixture
def data_migration(settings: Any) -> None:
    settings.INSTALLED_APPS = [DATA_MIGRATION, *settings.INSTALLED_APPS]
    settings.JOBQUEUE = {**settings.JOBQUEUE, "QUEUES": QUEUES}


@pytest.mark.parametrize("labels", ((), ("data_migration",)), ids=("all", "one app"))
def test_a_data_migration_sends_jobs_on_a_new_database(other_database, data_migration, labels):
    migrate(*labels)

    assert sent() == {"send": "default", "send_many": "reports", "partition": "own"}
    assert services.get_queue("reports", using="other").dead_letter_id == "letters"
    parts = "SELECT DISTINCT tableoid::regclass::text FROM jobqueue_job WHERE queue_id = 'own'"
    assert rows("other", parts) == [(partition_name("own"),)]


def test_a_data_migration_sends_to_a_queue_that_is_declared_in_the_same_release(
    other_database, data_migration, settings
):
    migrate("jobqueue")
    settings.JOBQUEUE = {"QUEUES": QUEUES | {"later": {}}}
    Queue.objects.using("other").filter(pk="default").delete()

    migrate("data_migration")
    assert sent()["send"] == "default"

    services.delete_queue("later", using="other")
    migrate("data_migration", "zero")
    assert sent()["undo"] == "later"


def test_before_the_data_migrations_only_missing_queues_are_created(other_database, data_migration, settings):
    migrate()
    settings.JOBQUEUE = {"QUEUES": {"reports": {"retry_limit": 9}, "wrong": {"dead_letter": "missing"}}}

    with pytest.raises(QueueNotFound, match="missing"):  # from sync_declared(), after all migrations
        migrate()

    assert not Queue.objects.using("other").filter(pk="wrong").exists()


def test_a_database_with_older_tables_is_left_to_its_migrations(other_database, settings):
    migrate()
    settings.JOBQUEUE = {"QUEUES": {"mails": {}}}
    execute("other", "ALTER TABLE jobqueue_queue DROP COLUMN description")

    migrate("contenttypes")

    assert rows("other", "SELECT name FROM jobqueue_queue") == [("default",)]
