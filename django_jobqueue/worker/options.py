"""The options of a worker, from its command line or the settings."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from ..conf import get_settings
from ..engine.databases import database


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker. With no ``queues`` it serves all that have handlers."""

    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    grouping: str | None = None  # how standard queues are read by group
    processes: int = 1
    concurrency: int = 8
    grace: float = 30.0
    max_jobs: int = 0  # a child is replaced after so many jobs; 0: never
    drain: bool = False  # process all waiting jobs, then exit
    schedules: bool = True
    name: str = ""
    using: str = "default"
    health_port: int = 0
    stop_on_eof: bool = False  # stop at once when the standard input ends

    @classmethod
    def build(cls, **overrides: Any) -> WorkerOptions:
        """Options from ``overrides``; those that are missing or ``None`` are taken from the settings."""
        settings = get_settings()
        values: dict[str, Any] = {
            "processes": settings.PROCESSES,
            "concurrency": settings.CONCURRENCY,
            "grace": float(settings.STOP_GRACE_SECONDS),
            "name": f"{socket.gethostname()}-{os.getpid()}",
            "using": database(None),
        }
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)
