"""The job table is partitioned by queue: how it is made, and how a queue gets a part of its own."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from django.db.migrations.operations import CreateModel

PARENT = "jobqueue_job"
DEFAULT = "jobqueue_job_default"

# A queue's table turns over completely many times a day: vacuum by a fixed number of rows and not by a share of a
# table that may be large, and never take the lock that giving empty pages back to the system needs.
STORAGE = {
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "2000",
    "autovacuum_vacuum_insert_scale_factor": "0.1",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_analyze_threshold": "2000",
    "autovacuum_vacuum_cost_delay": "1",
    "vacuum_truncate": "false",
    "toast.vacuum_truncate": "false",
}
WITH_STORAGE = "WITH (" + ", ".join(f"{name} = {value}" for name, value in STORAGE.items()) + ")"


def partition_name(queue: str) -> str:
    """A table name that says which queue it is, and is unique however long the queue's name."""
    readable = re.sub(r"\W+", "_", queue.lower())[:30].strip("_")
    return f"{PARENT}_{readable}_{hashlib.sha256(queue.encode()).hexdigest()[:10]}"


def leaf_of(queue: str, partition: bool) -> str:
    """The part of the job table that a queue's jobs lie in."""
    return partition_name(queue) if partition else DEFAULT


def create_partition_sql(queue_literal: str, name: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {PARENT} FOR VALUES IN ({queue_literal}) {WITH_STORAGE}"


class CreatePartitionedModel(CreateModel):
    """``CreateModel`` for a table that PostgreSQL partitions by list, with the partition key in its primary key."""

    def __init__(self, *args: Any, partition_by: str = "queue_id", **kwargs: Any) -> None:
        self.partition_by = partition_by
        super().__init__(*args, **kwargs)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        sql, params = schema_editor.table_sql(model)
        table, key = model._meta.db_table, model._meta.pk.column
        columns = sql.replace(" PRIMARY KEY", "", 1).rstrip().removesuffix(")")
        schema_editor.execute(
            f'{columns}, CONSTRAINT "{table}_pkey" PRIMARY KEY ("{key}", "{self.partition_by}"))'
            f' PARTITION BY LIST ("{self.partition_by}")',
            params or None,
        )
        schema_editor.deferred_sql.extend(schema_editor._model_indexes_sql(model))
