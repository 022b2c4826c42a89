"""The other parts of the schema: CHECK constraints, triggers, partitions, sequences and migrations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.models import CheckConstraint

from ..engine.databases import rows
from ..models import Queue
from ..partitions import PARENT, create_partition_sql, partition_name
from .findings import Finding, Level, Limits, counted
from .indexes import APP, FIX, PARTS, our_models

# -------------------------------------------------------------------------------------------------------- constraints

CHECKS = """
SELECT t.relname, c.conname, c.convalidated FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
WHERE t.oid = ANY(%s::regclass[])
"""


def constraints(using: str, limits: Limits) -> Iterator[Finding]:
    """CHECK constraints of the models. Partitions inherit those of the job table, so they are not checked."""
    editor: Any = connections[using].schema_editor(collect_sql=True)
    tables = [f'"{model._meta.db_table}"' for model in our_models()]
    existing = {(table, name): valid for table, name, valid in rows(using, CHECKS, [tables])}
    for model in our_models():
        table = model._meta.db_table
        for constraint in model._meta.constraints:
            valid = existing.get((table, constraint.name))
            if not isinstance(constraint, CheckConstraint) or valid:
                continue
            validate = f'ALTER TABLE "{table}" VALIDATE CONSTRAINT "{constraint.name}"'
            create = f"{constraint.create_sql(model, editor)} NOT VALID"
            yield _check(using, table, constraint.name, (create, validate) if valid is None else (validate,))


def _check(using: str, table: str, name: str, sql: tuple[str, ...]) -> Finding:
    what = "missing" if len(sql) > 1 else "not validated"
    return Finding(
        "missing_constraint" if len(sql) > 1 else "invalid_constraint",
        Level.ERROR,
        f"The constraint {name} of {table} is {what}",
        "The database accepts rows that break it, and the code does not expect such rows.",
        FIX,
        {"constraint": name, "table": table},
        using,
        sql=sql,
    )


# ----------------------------------------------------------------------------------------------------------- triggers

KEEP_OPERATIONS: str = import_module("django_jobqueue.migrations.0001_initial").KEEP_OPERATIONS
_TRIGGER = re.compile(r"^CREATE OR REPLACE TRIGGER (?P<name>\w+) .* ON (?P<table>\w+)$", re.MULTILINE)
# tgenabled: O fires in ordinary sessions, A always; D is disabled, R fires only in replication.
TRIGGERS = """
SELECT tgname FROM pg_trigger
WHERE tgrelid = to_regclass(%s) AND tgname = %s AND tgenabled IN ('O', 'A') AND NOT tgisinternal
"""


def triggers(using: str, limits: Limits) -> Iterator[Finding]:
    """The triggers that keep the records of operations as they are."""
    for name, table in _TRIGGER.findall(KEEP_OPERATIONS):
        if not rows(using, TRIGGERS, [f'"{table}"', name]):
            yield Finding(
                "missing_trigger",
                Level.ERROR,
                f"The trigger {name} of {table} is missing or turned off",
                "Without it, the records of what operators did can be changed and deleted.",
                FIX,
                {"trigger": name, "table": table},
                using,
                sql=(KEEP_OPERATIONS,),
            )


# --------------------------------------------------------------------------- partitions, sequences, migrations


def partitions(using: str, limits: Limits) -> Iterator[Finding]:
    """Queues that should have a partition of their own and have none: their jobs are not found."""
    parts = {row[0] for row in rows(using, PARTS)}
    for queue in Queue.objects.using(using).filter(partition=True).values_list("name", flat=True):
        part = partition_name(queue)
        if part not in parts:
            literal = "'" + queue.replace("'", "''") + "'"
            yield Finding(
                "missing_partition",
                Level.ERROR,
                f"The queue {queue!r} has lost its partition of the job table",
                f"The table {part} does not exist or is not attached, and fetches read only this table.",
                f"{create_partition_sql(literal, part)};",
                {"queue": queue, "table": part},
                using,
            )


SEQUENCES = """
SELECT sequencename, last_value, max_value, cycle FROM pg_sequences
WHERE schemaname = (SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = 'jobqueue_job'::regclass)
    AND sequencename LIKE 'jobqueue\\_%%' AND (last_value >= %s * max_value OR cycle)
"""
LARGEST = 2**63 - 1


def sequences(using: str, limits: Limits) -> Iterator[Finding]:
    for name, last, largest, cycles in rows(using, SEQUENCES, [limits.sequence_share]):
        facts = {"sequence": name, "last_value": last, "max_value": largest, "cycles": cycles}
        if largest < LARGEST or cycles:
            sql = f"ALTER SEQUENCE {name} AS bigint NO MAXVALUE NO CYCLE"
            yield _sequence(
                using, name, f"It ends at {largest:,}, but a bigint can be larger.", f"{sql};", facts, (sql,)
            )
        else:
            table, column = (PARENT, "greatest(max(seq), max(position))") if name == f"{PARENT}_seq" else (None, "")
            find = f"(SELECT COALESCE({column}, 1) FROM {table})" if table else "(the largest number in use)"
            text = "So many jobs cannot have been sent: it was set by hand. Set it back to the largest number in use."
            lock = f"BEGIN; LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE; " if table else ""
            end = " COMMIT;" if table else ""
            yield _sequence(using, name, text, f"{lock}SELECT setval('{name}', {find});{end}", facts, ())


def _sequence(using: str, name: str, text: str, fix: str, facts: dict[str, Any], sql: tuple[str, ...]) -> Finding:
    share = facts["last_value"] / facts["max_value"]
    title = f"The sequence {name} has used {share:.0%} of its numbers"
    detail = f"{text} When its numbers are used up, no more jobs can be sent."
    return Finding("sequence_end", Level.ERROR, title, detail, fix, facts, using, sql=sql)


def unapplied_migrations(using: str, limits: Limits) -> Iterator[Finding]:
    loader = MigrationLoader(connections[using])
    missing = [
        name for app, name in loader.disk_migrations if app == APP and (app, name) not in loader.applied_migrations
    ]
    if missing:
        yield Finding(
            "unapplied_migrations",
            Level.ERROR,
            f"{counted(len(missing), 'migration')} of jobqueue not applied",
            f"The code needs these migrations: {', '.join(sorted(missing))}.",
            f"manage.py migrate jobqueue{'' if using == 'default' else f' --database {using}'}",
            {"migrations": sorted(missing)},
            using,
        )


LOOKS = (constraints, triggers, partitions, sequences)
