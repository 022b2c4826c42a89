"""The job table is partitioned by queue: the names and the storage of its parts."""

from __future__ import annotations

import hashlib
import re

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
