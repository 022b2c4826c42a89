"""The schema: what the migrations make, and that the database itself keeps the laws."""

from __future__ import annotations

import ast
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, connections, transaction

from django_jobqueue import migrations
from django_jobqueue.expressions import StatementTimestamp
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job
from django_jobqueue.partitions import DEFAULT, STORAGE, partition_name
from django_jobqueue.states import BLOCKING, FINAL, JobState

from .factories import JobFactory

ONE_BLOCKER = "jobqueue_job_one_blocker_per_key"

# What migrations may name of ours. The columns and indexes that these make are those of Django's own classes, and the
# function is called for no row that a migration makes.
STABLE = {
    "django_jobqueue.identifiers.uuid7",
    "django_jobqueue.postgresql.ListField",
    "django_jobqueue.postgresql.GinIndex",
    "django_jobqueue.postgresql.BrinIndex",
}
MIGRATIONS = sorted(path for path in Path(migrations.__path__[0]).glob("*.py") if path.name != "__init__.py")

# A job past all Python: what psql could write.
INSERT = """
INSERT INTO jobqueue_job (id, queue_id, policy, singleton_key, state, finalized_at) VALUES (%s, %s, %s, %s, %s, {})
"""


def rows(sql: str, params: Any = None, *, using: str = "default") -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def insert(queue: str, policy: str, key: str, state: str) -> None:
    finalized = "now()" if state in {"failed", "expired", "completed"} else "NULL"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(INSERT.format(finalized), [uuid7(), queue, policy, key, state])


def index(table: str, name: str | None = None) -> tuple[bool, str]:
    """Whether it is unique, and its definition; of a partition, the one attached to the parent's of that name."""
    found = rows(
        """SELECT x.indisunique, pg_get_indexdef(x.indexrelid) FROM pg_index x
        LEFT JOIN pg_inherits i ON i.inhrelid = x.indexrelid
        WHERE x.indrelid = %s::regclass AND x.indisvalid
            AND COALESCE(i.inhparent, x.indexrelid) = %s::regclass""",
        [table, name or ONE_BLOCKER],
    )
    assert len(found) == 1, (table, name, found)
    return found[0]


def storage(table: str) -> dict[str, str]:
    options = rows("SELECT COALESCE(reloptions, '{}') FROM pg_class WHERE oid = %s::regclass", [table])[0][0]
    return dict(option.split("=", 1) for option in options)


@pytest.mark.django_db
def test_what_an_index_knows_comes_first_and_of_that_what_has_a_fixed_width():
    """At each update PostgreSQL compares these columns, and walks over all that come before each of them."""
    found = rows(
        """SELECT a.attnum, a.attlen > 0 AND a.attnotnull FROM pg_attribute a
        WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND (
            EXISTS (SELECT 1 FROM pg_depend d JOIN pg_index x ON x.indexrelid = d.objid AND x.indrelid = a.attrelid
                WHERE d.refobjid = a.attrelid AND d.refobjsubid = a.attnum)
            OR EXISTS (SELECT 1 FROM pg_index x WHERE x.indrelid = a.attrelid AND a.attnum = ANY(x.indkey)))
        ORDER BY a.attnum""",
        [DEFAULT],
    )

    assert [place for place, _ in found] == list(range(1, len(found) + 1))
    widths = [is_fixed for _, is_fixed in found]
    assert widths == sorted(widths, reverse=True)
    assert len(found) > 20


@pytest.mark.django_db
def test_the_models_need_no_further_migration():
    out = StringIO()

    call_command("makemigrations", "jobqueue", check=True, dry_run=True, stdout=out)

    assert "No changes detected" in out.getvalue()


def names_of_ours(code: str) -> set[str]:
    """What code names of the package, each as far as it is written; imports by name and relative ones too."""
    found = set[str]()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            home = ".".join(filter(None, ["." * node.level, node.module]))
            found |= {
                f"{home}.{alias.name}" for alias in node.names if node.level or home.startswith("django_jobqueue")
            }
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("django_jobqueue."):
            found.add(ast.unparse(node))
    modules = {name.rpartition(".")[0] for name in found}
    return found - modules


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: path.stem)
def test_a_migration_names_nothing_of_ours_that_may_change(path):
    assert names_of_ours(path.read_text()) <= STABLE


@pytest.mark.parametrize(
    ("line", "name"),
    (
        ("from django_jobqueue.states import RUNNING", "django_jobqueue.states.RUNNING"),
        ("from ..states import RUNNING", "...states.RUNNING"),
        ("import django_jobqueue.states\nx = django_jobqueue.states.RUNNING", "django_jobqueue.states.RUNNING"),
    ),
)
def test_a_name_of_ours_in_a_migration_would_be_found(line, name):
    assert names_of_ours(line) == {name}


class StartOfTransaction(StatementTimestamp):
    template = "now()"


def test_a_change_of_the_sql_of_a_default_is_a_change_of_the_model():
    """Because the migration holds the SQL and not the class, makemigrations finds it."""
    path, _, kwargs = StatementTimestamp().deconstruct()
    changed, _, differently = StartOfTransaction().deconstruct()

    assert path == changed == "django.db.models.Func"
    assert (kwargs["template"], differently["template"]) == ("statement_timestamp()", "now()")


def test_the_migrations_go_up_down_and_up_again(other_database):  # R030 R328
    def tables() -> set[str]:
        return {row[0] for row in rows("SELECT relname FROM pg_class WHERE relname LIKE 'jobqueue%%'", using="other")}

    call_command("migrate", "jobqueue", database="other", verbosity=0)
    once = tables()
    assert {"jobqueue_job", "jobqueue_queue", DEFAULT, ONE_BLOCKER, "jobqueue_job_seq"} <= once

    call_command("migrate", "jobqueue", "zero", database="other", verbosity=0)
    assert tables() == set()

    call_command("migrate", "jobqueue", database="other", verbosity=0)
    assert tables() == once


@pytest.mark.django_db
def test_the_default_part_of_the_table_takes_every_queue_without_its_own():
    insert("anything", "standard", "", "created")

    assert rows("SELECT tableoid::regclass::text FROM jobqueue_job") == [(DEFAULT,)]


@pytest.mark.django_db
def test_the_primary_key_is_the_id_and_the_queue():
    found = rows("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'jobqueue_job_pkey'")

    assert found == [("PRIMARY KEY (id, queue_id)",)]


@pytest.mark.django_db
def test_every_constraint_exists_by_its_name():  # R009 R384
    checks = {row[0] for row in rows("SELECT conname FROM pg_constraint WHERE conrelid = 'jobqueue_job'::regclass")}
    indexes = {row[0] for row in rows("SELECT indexrelid::regclass::text FROM pg_index WHERE indisunique")}
    every = {constraint.name for constraint in Job._meta.constraints}

    assert ONE_BLOCKER in indexes
    assert "jobqueue_job_standard_one_per_key" in indexes
    assert every <= checks | indexes


@pytest.mark.django_db
def test_every_index_of_the_model_exists_on_the_table_and_on_its_default_part():
    for wanted in Job._meta.indexes:
        index("jobqueue_job", wanted.name)
        index(DEFAULT, wanted.name)


@pytest.mark.django_db
@pytest.mark.parametrize("table", ("jobqueue_job", DEFAULT))
def test_one_blocker_per_key_is_a_partial_unique_index(table):  # R009 R029
    is_unique, definition = index(table)

    assert is_unique
    assert "(queue_id, singleton_key)" in definition
    condition = definition.split(" WHERE ")[1]
    assert "'key_strict_fifo'" in condition
    assert all(f"'{state}'" in condition for state in BLOCKING)
    assert not any(f"'{state}'" in condition for state in set(JobState) - BLOCKING)


def test_a_queue_s_own_part_has_the_fifo_index_too(partitioned_fifo_queue):  # R029
    is_unique, definition = index(partition_name(partitioned_fifo_queue.name))

    assert is_unique
    assert "(queue_id, singleton_key)" in definition
    insert(partitioned_fifo_queue.name, "key_strict_fifo", "a", "active")
    with pytest.raises(IntegrityError, match="unique"):
        insert(partitioned_fifo_queue.name, "key_strict_fifo", "a", "retry")


@pytest.mark.django_db
@pytest.mark.parametrize("first", sorted(BLOCKING))
@pytest.mark.parametrize("second", sorted(BLOCKING))
def test_the_database_refuses_two_blocking_rows_of_a_key(first, second):  # R010 I1
    insert("q", "key_strict_fifo", "a", first)

    with pytest.raises(IntegrityError, match="unique"):
        insert("q", "key_strict_fifo", "a", second)
    insert("q", "key_strict_fifo", "b", second)
    insert("q", "key_strict_fifo", "a", "created")


@pytest.mark.django_db
@pytest.mark.parametrize("blocking", sorted(BLOCKING))
def test_the_database_refuses_to_start_a_job_behind_a_blocking_one(blocking):  # R011 R012
    insert("q", "key_strict_fifo", "a", blocking)
    insert("q", "key_strict_fifo", "a", "created")
    jobs = Job.objects.filter(queue="q")

    with pytest.raises(IntegrityError, match="unique"), transaction.atomic():
        jobs.filter(state="created").update(state="active")
    for state in ("retry", "active", "retry", "unknown_retry", "active", "cancelling"):
        assert jobs.exclude(state="created").update(state=state, finalized_at=None) == 1


@pytest.mark.django_db
def test_the_database_refuses_an_ordered_job_without_a_key():  # R084
    with pytest.raises(IntegrityError, match="jobqueue_job_ordered_has_a_key"):
        insert("q", "key_strict_fifo", "", "created")


@pytest.mark.django_db
@pytest.mark.parametrize("state", sorted(FINAL))
def test_the_database_refuses_an_end_without_its_time(state):  # I4
    with pytest.raises(IntegrityError, match="jobqueue_job_final_has_finalized_at"), transaction.atomic():
        rows(INSERT.format("NULL"), [uuid7(), "q", "standard", "", state])


@pytest.mark.django_db
@pytest.mark.parametrize("state", sorted(set(JobState) - FINAL))
def test_the_database_refuses_a_time_without_an_end(state):  # I4
    with pytest.raises(IntegrityError, match="jobqueue_job_final_has_finalized_at"), transaction.atomic():
        rows(INSERT.format("now()"), [uuid7(), "q", "standard", "", state])


@pytest.mark.django_db
def test_the_database_refuses_more_retries_than_the_limit(queue):  # I6
    job = JobFactory(queue=queue, retry_limit=2)

    with pytest.raises(IntegrityError, match="jobqueue_job_retries_within_limit"):
        Job.objects.filter(pk=job.pk).update(retry_count=3)


@pytest.mark.django_db
def test_the_default_part_is_vacuumed_by_numbers_of_rows():
    wanted = {name: value for name, value in STORAGE.items() if not name.startswith("toast.")}

    assert storage(DEFAULT) == wanted


def test_a_queue_s_own_part_is_vacuumed_the_same_way(partitioned_queue):
    assert storage(partition_name(partitioned_queue.name)) == storage(DEFAULT) != {}


@pytest.mark.django_db
def test_numbers_are_handed_out_one_by_one():
    """A cached block per connection would let a later send overtake an earlier one."""
    found = rows("SELECT cache_size, data_type::text FROM pg_sequences WHERE sequencename = 'jobqueue_job_seq'")

    assert found == [(1, "bigint")]
