"""The job table is partitioned by queue: the names and the storage of its parts."""

from __future__ import annotations

import hashlib
import re

PARENT = "jobqueue_job"
DEFAULT = "jobqueue_job_default"

# All rows of a queue's table are replaced many times a day: vacuum it after a fixed number of rows, not after a share
# of a table that may be large, and never take the lock that is needed to return empty pages to the system.
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
    """The name of a queue's own partition: readable, and unique even for long names of queues."""
    readable = re.sub(r"\W+", "_", queue.lower())[:30].strip("_")
    return f"{PARENT}_{readable}_{hashlib.sha256(queue.encode()).hexdigest()[:10]}"


def leaf_of(queue: str, partition: bool) -> str:
    """The part of the job table that contains the jobs of a queue."""
    return partition_name(queue) if partition else DEFAULT


def create_partition_sql(queue_literal: str, name: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {PARENT} FOR VALUES IN ({queue_literal}) {WITH_STORAGE}"
