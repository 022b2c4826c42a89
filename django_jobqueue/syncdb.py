"""Creating the tables where migrations are turned off.

With ``pytest --nomigrations``, ``TEST: {"MIGRATE": False}`` or ``MIGRATION_MODULES``, Django creates each table from
its model. A model cannot say everything that our tables need: the sequence, the partitions, the storage options. So our
own migrations create them, just before Django looks which tables are missing.
"""

from __future__ import annotations

from typing import Any

from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from .models import Job

LABEL = "jobqueue"


class OwnMigrations(MigrationLoader):
    """The migrations of this app, and of no other, whatever ``MIGRATION_MODULES`` says."""

    @classmethod
    def migrations_module(cls, app_label: str) -> Any:
        return (f"{__package__}.migrations", False) if app_label == LABEL else (None, True)


def is_migrated() -> bool:
    """Whether ``migrate`` runs the migrations of this app."""
    module, _ = MigrationLoader.migrations_module(LABEL)
    return module is not None


def create_tables(using: str) -> None:
    """Run our migrations without recording them, unless the tables exist or do not belong into this database."""
    connection = connections[using]
    if not router.allow_migrate_model(using, Job) or not Job._meta.can_migrate(connection):
        return
    if Job._meta.db_table in connection.introspection.table_names():
        return
    graph = OwnMigrations(None).graph
    state = ProjectState()
    for step in (step for leaf in graph.leaf_nodes(LABEL) for step in graph.forwards_plan(leaf)):
        migration = graph.nodes[step]
        with connection.schema_editor(atomic=migration.atomic) as editor:
            state = migration.apply(state, editor)
