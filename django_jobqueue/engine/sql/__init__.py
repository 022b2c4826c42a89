"""Statements on jobs that the ORM cannot say, or says measurably slower, one module per moment of a job's life.

They are plain constants, so that a plan can be explained and a reader finds all locking in one place. Times are the
database's, and ``statement_timestamp()`` rather than ``now()``, because in a long transaction ``now()`` stands still.
"""

from . import (
    fetch,
    finish,
    grouped_reads,
    inspect,
    lanes,
    maintain,
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
    "fetch",
    "finish",
    "grouped_reads",
    "inspect",
    "lanes",
    "maintain",
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
