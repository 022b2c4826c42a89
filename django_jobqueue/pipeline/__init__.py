"""Archive, audit, analyze, restore and bulk send with PySpark (extra ``spark``).

Modules are imported when one of their names is used: Spark's own processes load this package to find the data source,
and Django is not set up in these processes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analyzing import Analysis, analyze_jobs
    from .archiving import Archived, archive_jobs
    from .auditing import Audit, audit_order
    from .bulk_sending import BulkSent, Mapping, bulk_send
    from .lake import JOB_SCHEMA, Lake, read_lake
    from .order import breaches_of_order
    from .reading import job_snapshot, read_jobs, register
    from .restoring import Restored, restore_jobs
    from .session import spark_session
    from .writing import write_jobs

_MODULES = {
    "Analysis": "analyzing",
    "Archived": "archiving",
    "Audit": "auditing",
    "BulkSent": "bulk_sending",
    "JOB_SCHEMA": "lake",
    "Lake": "lake",
    "Mapping": "bulk_sending",
    "Restored": "restoring",
    "analyze_jobs": "analyzing",
    "archive_jobs": "archiving",
    "audit_order": "auditing",
    "breaches_of_order": "order",
    "bulk_send": "bulk_sending",
    "job_snapshot": "reading",
    "read_jobs": "reading",
    "read_lake": "lake",
    "register": "reading",
    "restore_jobs": "restoring",
    "spark_session": "session",
    "write_jobs": "writing",
}
__all__ = [
    "JOB_SCHEMA",
    "Analysis",
    "Archived",
    "Audit",
    "BulkSent",
    "Lake",
    "Mapping",
    "Restored",
    "analyze_jobs",
    "archive_jobs",
    "audit_order",
    "breaches_of_order",
    "bulk_send",
    "job_snapshot",
    "read_jobs",
    "read_lake",
    "register",
    "restore_jobs",
    "spark_session",
    "write_jobs",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
