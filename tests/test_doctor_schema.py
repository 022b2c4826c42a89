"""The doctor and our tables: indexes, constraints, parts, sequences, migrations; found, mended, gone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection, connections, transaction

from django_jobqueue import services
from django_jobqueue.doctor import Finding, Level, examine, repair
from django_jobqueue.doctor.findings import Limits
from django_jobqueue.doctor.indexes import declared_indexes, indexes, our_models
from django_jobqueue.doctor.schema import constraints
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.models import Job
from django_jobqueue.partitions import DEFAULT, partition_name
from tests.concurrency.sessions import until
from tests.test_migrations import rows

SCHEMA_CODES = {
    "missing_index", "invalid_index", "leftover_index", "other_index", "missing_constraint", "invalid_constraint",
    "missing_trigger",
    "missing_primary_key", "missing_partition", "sequence_end", "unapplied_migrations",
}  # fmt: skip


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def found(*codes: str) -> list[Finding]:
    return [finding for finding in examine() if finding.code in (codes or SCHEMA_CODES)]


def definitions() -> dict[str, str]:
    """Every index of our tables, by table and by what it is, without the names of the parts' own."""
    answers = rows(
        "SELECT t.relname, COALESCE(p.relname, i.relname), pg_get_indexdef(x.indexrelid), x.indisvalid "
        "FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid "
        "LEFT JOIN pg_inherits h ON h.inhrelid = i.oid LEFT JOIN pg_class p ON p.oid = h.inhparent "
        "WHERE t.relname LIKE 'jobqueue%'"
    )
    return {f"{table} {name}": f"{valid} {text.split(' USING ')[1]}" for table, name, text, valid in answers}


def constraint_definitions() -> set[tuple[str, str, str, bool]]:
    return set(
        rows(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), convalidated FROM pg_constraint "
            "WHERE conrelid::regclass::text LIKE 'jobqueue%' AND contype IN ('c', 'u', 'p')"
        )
    )


@contextmanager
def other_session(using: str = "default", **others: str) -> Iterator[psycopg.Connection]:
    params = {
        k: v for k, v in connections[using].get_connection_params().items() if k not in ("cursor_factory", "context")
    }
    session = psycopg.connect(**params | others, autocommit=True)
    try:
        yield session
    finally:
        session.close()


def cancelled_build(sql: str, table: str) -> None:
    """Begin to build an index, and cancel it while it waits for another transaction."""
    with other_session() as writer, other_session() as builder, ThreadPoolExecutor(1) as pool:
        writer.execute("BEGIN")
        writer.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        building = pool.submit(builder.execute, sql)
        pid = builder.info.backend_pid
        until(lambda: bool(rows("SELECT cardinality(pg_blocking_pids(%s))", [pid])[0][0]))
        assert not found("leftover_index", "invalid_index"), "an index that is being built is no leftover"
        rows("SELECT pg_cancel_backend(%s)", [pid])
        with pytest.raises(psycopg.errors.QueryCanceled):
            building.result(10)


@pytest.fixture
def as_it_was(transactional_db: None) -> Iterator[None]:
    """The schema afterwards is what it was before, whatever the test did."""
    before, laws = definitions(), constraint_definitions()
    yield
    repair(examine())
    assert definitions() == before
    assert constraint_definitions() == laws


@pytest.mark.django_db
def test_a_fresh_schema_has_nothing_wrong():
    assert found() == []


@pytest.mark.django_db
def test_tables_of_other_schemas_and_of_the_project_are_not_looked_at():
    execute("CREATE SCHEMA elsewhere")
    execute("CREATE TABLE elsewhere.jobqueue_queue (LIKE jobqueue_queue INCLUDING CONSTRAINTS)")
    for sequence in ("elsewhere.jobqueue_job_seq", "shop_seq"):
        execute(f"CREATE SEQUENCE {sequence} MAXVALUE 10")
        rows("SELECT setval(%s, 10)", [sequence])
    execute("CREATE TABLE visits (day date) PARTITION BY LIST (day)")
    execute("CREATE TABLE visits_of_today PARTITION OF visits DEFAULT")
    assert found() == []

    execute("ALTER TABLE jobqueue_queue DROP CONSTRAINT jobqueue_queue_has_a_name")
    (finding,) = found()

    assert finding.facts == {"constraint": "jobqueue_queue_has_a_name", "table": "jobqueue_queue"}


@pytest.mark.django_db
def test_parts_that_lack_an_index_are_named_by_the_alphabet():
    for name in ("zebra", "ant"):
        services.create_queue(name, partition=True)
    declared = next(index for index in declared_indexes("default") if index.name == "jobqueue_job_tags")
    execute("DROP INDEX jobqueue_job_tags")
    execute(declared.create(how="", only="ONLY "))

    (finding,) = found()

    assert finding.facts["parts"] == [partition_name("ant"), DEFAULT, partition_name("zebra")]


@pytest.mark.django_db
def test_every_declared_index_is_looked_for_by_its_name():  # R062 B21
    declared = declared_indexes("default")
    names = {index.name for index in declared}
    assert {index.name for index in Job._meta.indexes} <= names
    for index in declared:
        with transaction.atomic():
            drop = f'ALTER TABLE "{index.table}" DROP CONSTRAINT "{index.name}"' if index.constraint else ""
            execute(drop or f'DROP INDEX "{index.name}"')
            (finding,) = list(indexes("default", Limits()))
            assert (finding.code, finding.level) == ("missing_index", Level.ERROR)
            assert finding.facts["index"] == index.name
            transaction.set_rollback(True)


@pytest.mark.django_db
def test_every_declared_check_is_looked_for_by_its_name():
    checks = [
        (model._meta.db_table, constraint.name)
        for model in our_models()
        for constraint in model._meta.constraints
        if type(constraint).__name__ == "CheckConstraint"
    ]
    assert len(checks) > 5
    for table, name in checks:
        with transaction.atomic():
            execute(f'ALTER TABLE "{table}" DROP CONSTRAINT "{name}"')
            (finding,) = list(constraints("default", Limits()))
            assert (finding.code, finding.facts["constraint"]) == ("missing_constraint", name)
            transaction.set_rollback(True)


@pytest.mark.parametrize(
    "statement",
    (
        "DROP TRIGGER jobqueue_keep_operation ON jobqueue_operation",
        "ALTER TABLE jobqueue_operation DISABLE TRIGGER jobqueue_keep_operation",
        "ALTER TABLE jobqueue_operation ENABLE REPLICA TRIGGER jobqueue_keep_operation",
        "DROP FUNCTION jobqueue_keep_operation_batch() CASCADE",
    ),
)
def test_a_trigger_that_is_missing_or_off_is_found_and_created_again(as_it_was, statement):
    execute(statement)

    (finding,) = found()
    assert finding.code == "missing_trigger"
    assert finding.facts["trigger"] in statement

    assert repair([finding])[0].done
    assert found() == []


def test_all_indexes_can_be_dropped_and_are_built_again_on_every_part(
    as_it_was, partitioned_queue, partitioned_fifo_queue
):  # R062 R063 R069 R029
    services.send_many(partitioned_queue.name, [{"group_key": "g", "tags": ["red"]}] * 50)
    services.send_many(partitioned_fifo_queue.name, [{"singleton_key": f"k{n}"} for n in range(50)])
    before = definitions()
    for index in declared_indexes("default"):
        if index.constraint:
            execute(f'ALTER TABLE "{index.table}" DROP CONSTRAINT "{index.name}"')
        else:
            execute(f'DROP INDEX "{index.name}"')

    repairs = repair(examine())

    assert [one for one in repairs if not one.done] == []
    assert definitions() == before
    assert found() == []
    parts = {partition_name(partitioned_queue.name), partition_name(partitioned_fifo_queue.name), DEFAULT}
    assert {key.split()[0] for key in before if key.endswith(" jobqueue_job_group")} == {*parts, "jobqueue_job"}


def test_the_group_index_is_added_to_a_queue_in_use_without_stopping_it(as_it_was, queue):  # R069
    execute("DROP INDEX jobqueue_job_group")
    services.send(queue.name, group_key="a")
    (finding,) = found("missing_index")

    with other_session() as user:  # sends and fetches go on while parts are built
        assert repair([finding])[0].done
        user.execute("SELECT 1")

    assert not any(
        sql.startswith("CREATE INDEX") and "ONLY" not in sql and "CONCURRENTLY" not in sql for sql in finding.sql
    )
    assert found() == []


def test_a_part_that_lacks_a_piece_of_an_index_gets_it(as_it_was, partitioned_queue):
    execute("DROP INDEX jobqueue_job_tags")
    declared = next(index for index in declared_indexes("default") if index.name == "jobqueue_job_tags")
    execute(declared.create(how="", only="ONLY "))
    part = partition_name(partitioned_queue.name)
    execute(declared.create(how="", name="piece_of_tags", table=part))
    execute("ALTER INDEX jobqueue_job_tags ATTACH PARTITION piece_of_tags")

    (finding,) = found()

    assert finding.facts["parts"] == [DEFAULT]
    assert DEFAULT in finding.title
    repair([finding])
    assert found() == []


def test_an_invalid_leftover_of_a_cancelled_build_is_dropped(as_it_was, queue):
    cancelled_build(f"CREATE INDEX CONCURRENTLY by_priority ON {DEFAULT} (priority)", DEFAULT)

    (finding,) = found()

    assert (finding.code, finding.facts["index"]) == ("leftover_index", "by_priority")
    assert repair([finding])[0].done
    assert found() == []


def test_an_invalid_index_of_ours_is_built_again(as_it_was):  # F36
    (declared,) = [index for index in declared_indexes("default") if index.name == "jobqueue_worker_live"]
    execute("DROP INDEX jobqueue_worker_live")
    cancelled_build(declared.create(), "jobqueue_worker")

    (finding,) = found()

    assert (finding.code, finding.facts["index"]) == ("invalid_index", "jobqueue_worker_live")
    assert "REINDEX" in finding.sql[0]
    assert repair([finding])[0].done
    assert found() == []


def test_a_build_by_the_doctor_that_was_cancelled_is_taken_up_again(as_it_was):
    declared = next(index for index in declared_indexes("default") if index.name == "jobqueue_job_group")
    execute("DROP INDEX jobqueue_job_group")
    execute(declared.create(how="", only="ONLY "))
    cancelled_build(declared.create(name=declared.part_name(DEFAULT), table=DEFAULT), DEFAULT)

    assert {finding.code for finding in found()} == {"missing_index", "leftover_index"}
    assert all(one.done for one in repair(examine()))
    assert found() == []


def test_an_invalid_piece_that_is_attached_is_built_again(as_it_was):
    declared = next(index for index in declared_indexes("default") if index.name == "jobqueue_job_group")
    execute("DROP INDEX jobqueue_job_group")
    execute(declared.create(how="", only="ONLY "))
    piece = "piece_of_group"  # a repaired index keeps its name, so no other test may use this one
    cancelled_build(declared.create(name=piece, table=DEFAULT), DEFAULT)
    execute(f"ALTER INDEX jobqueue_job_group ATTACH PARTITION {piece}")

    (finding,) = found()
    assert finding.code == "invalid_index"
    assert all(one.done for one in repair(examine()))
    assert found() == []


def test_a_law_that_the_rows_break_cannot_be_built_and_says_why(as_it_was, fifo_queue):
    execute("DROP INDEX jobqueue_job_one_blocker_per_key")
    ids = [services.send(fifo_queue.name, singleton_key="a").pk for _ in range(2)]  # type: ignore[union-attr]
    Job.objects.filter(pk__in=ids).update(state="active", hold=None)

    (failed,) = [one for one in repair(found("missing_index")) if not one.done]
    assert "could not create unique index" in failed.text

    Job.objects.filter(pk=ids[0]).delete()
    assert all(one.done for one in repair(examine()))
    assert found() == []


def test_an_index_that_only_has_the_right_name_is_replaced_by_the_right_one(
    as_it_was, partitioned_fifo_queue, fifo_queue
):
    before = definitions()
    execute("DROP INDEX jobqueue_job_one_blocker_per_key")
    execute(
        "CREATE UNIQUE INDEX jobqueue_job_one_blocker_per_key ON jobqueue_job (queue_id, singleton_key) "
        "WHERE state = 'active'"
    )
    execute("DROP INDEX jobqueue_worker_live")
    execute("CREATE INDEX jobqueue_worker_live ON jobqueue_worker (name)")
    execute("ALTER TABLE jobqueue_schedulerun DROP CONSTRAINT jobqueue_schedule_run_one_per_slot")
    execute(
        "ALTER TABLE jobqueue_schedulerun ADD CONSTRAINT jobqueue_schedule_run_one_per_slot "
        "UNIQUE (schedule_id, slot, job_id)"
    )

    wrong = found()

    assert {finding.code for finding in wrong} == {"other_index"}
    assert {finding.facts["index"] for finding in wrong} == {
        "jobqueue_job_one_blocker_per_key", "jobqueue_worker_live", "jobqueue_schedule_run_one_per_slot"
    }  # fmt: skip
    assert [one for one in repair(wrong) if not one.done] == []
    assert found() == []
    assert definitions() == before


def test_missing_and_unvalidated_constraints_are_mended(as_it_was):
    execute("ALTER TABLE jobqueue_job DROP CONSTRAINT jobqueue_job_ordered_has_a_key")
    execute("ALTER TABLE jobqueue_queue DROP CONSTRAINT jobqueue_queue_has_a_name")
    execute("ALTER TABLE jobqueue_queue ADD CONSTRAINT jobqueue_queue_has_a_name CHECK (NOT (name = '')) NOT VALID")

    assert {finding.code for finding in found()} == {"missing_constraint", "invalid_constraint"}
    assert all(one.done for one in repair(examine()))
    assert found() == []


def test_a_missing_primary_key_is_found_with_the_command_that_makes_it(as_it_was):
    execute("ALTER TABLE jobqueue_worker DROP CONSTRAINT jobqueue_worker_pkey CASCADE")

    (finding,) = found()

    assert finding.code == "missing_primary_key"
    assert not finding.is_repairable
    execute(finding.fix)
    assert found() == []


def test_a_queue_that_lost_its_part_is_found_with_the_command_that_makes_it(transactional_db):
    services.create_queue("mine", partition=True)
    execute(f"DROP TABLE {partition_name('mine')}")
    try:
        (finding,) = found()

        assert finding.code == "missing_partition"
        execute(finding.fix)
        assert found() == []
    finally:
        services.delete_queue("mine")


@pytest.mark.django_db
def test_a_sequence_near_its_end_is_found_and_the_command_sets_it_back(queue):  # F37
    services.send(queue.name)
    before = rows("SELECT last_value FROM jobqueue_job_seq")[0][0]
    rows("SELECT setval('jobqueue_job_seq', 9223372036854775000)")

    (finding,) = found()

    assert (finding.code, finding.facts["sequence"]) == ("sequence_end", "jobqueue_job_seq")
    (lock, setval) = finding.fix.removeprefix("BEGIN; ").removesuffix(" COMMIT;").rstrip(";").split("; ")
    execute(lock)
    execute(setval)
    assert found() == []
    assert rows("SELECT last_value FROM jobqueue_job_seq")[0][0] == before


def test_a_sequence_that_ends_too_early_is_given_its_whole_range(transactional_db):
    execute("ALTER SEQUENCE jobqueue_job_seq MAXVALUE 10000000")
    last = rows("SELECT last_value FROM jobqueue_job_seq")[0][0]
    rows("SELECT setval('jobqueue_job_seq', 9999990)")
    try:
        (finding,) = found()
        assert repair([finding])[0].done
        assert found() == []
    finally:
        execute("ALTER SEQUENCE jobqueue_job_seq NO MAXVALUE")
        rows("SELECT setval('jobqueue_job_seq', %s)", [last])


@pytest.mark.django_db
def test_unapplied_migrations_are_found():
    rows("DELETE FROM django_migrations WHERE app = 'jobqueue' RETURNING 1")

    (finding,) = found("unapplied_migrations")

    assert "0001_initial" in finding.detail
    assert finding.fix == "manage.py migrate jobqueue"


@pytest.mark.django_db
def test_repairing_inside_a_transaction_is_refused():
    execute("DROP INDEX jobqueue_job_group")

    with pytest.raises(InvalidOption, match="atomic"):
        repair(examine())
