"""Statements on jobs that the ORM cannot express, or only measurably slower, one module per step of a job's life.

They are plain constants, so that their plans can be explained and all locking is in one place. Times are the
database's. They are ``statement_timestamp()`` and not ``now()``, because ``now()`` does not change in a transaction.
"""

from . import (
    alerts,
    fetch,
    finish,
    grouped_reads,
    inspect,
    lanes,
    maintain,
    missing_handlers,
    parts,
    queues,
    schedules,
    send,
    session,
    staging,
    statistics,
    transitions,
    workers,
)

__all__ = [
    "alerts",
    "fetch",
    "finish",
    "grouped_reads",
    "inspect",
    "lanes",
    "maintain",
    "missing_handlers",
    "parts",
    "queues",
    "schedules",
    "send",
    "session",
    "staging",
    "statistics",
    "transitions",
    "workers",
]
