"""The options of a worker, from its command line or the settings."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import conf, handlers
from ..conf import Settings, get_settings
from ..engine.databases import database
from ..queue_order import QueueOrder


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker. With no ``queues`` it serves all declared ones that are no dead-letter queues."""

    queues: tuple[str, ...] = ()
    own: Mapping[str, int] = field(default_factory=dict)  # queues with threads of their own: how many run at once
    exclude: tuple[str, ...] = ()
    queue_order: QueueOrder = QueueOrder.FAIR
    tags: tuple[str, ...] = ()
    grouping: str | None = None  # how standard queues are read by group
    processes: int = 1
    concurrency: int = 8  # how many handlers run at once in a child, of all queues
    grace: float = 30.0
    max_jobs: int = 0  # a child is replaced after so many jobs; 0: never
    drain: bool = False  # process all waiting jobs, then exit
    schedules: bool = True
    name: str = ""
    using: str = "default"
    health_port: int = 0
    verbosity: int = 1  # 0: runjobs itself writes nothing but warnings and errors
    stop_on_eof: bool = False  # stop at once when the standard input ends

    @classmethod
    def build(cls, **overrides: Any) -> WorkerOptions:
        """Options from ``overrides``; those that are missing or ``None`` are taken from the settings."""
        settings = get_settings()
        values: dict[str, Any] = {
            "processes": settings.PROCESSES,
            "grace": float(settings.STOP_GRACE_SECONDS),
            "name": f"{socket.gethostname()}-{os.getpid()}",
            "using": database(None),
        }
        values.update({name: value for name, value in overrides.items() if value is not None})
        options = cls(**{"concurrency": settings.CONCURRENCY, **values})
        return options if "concurrency" in values else replace(options, concurrency=options._enough(settings))

    def _enough(self, settings: Settings) -> int:
        """How many handlers run at once if that is not given: those of each queue with a number, and of the others."""
        return sum(self.own.values()) + (settings.CONCURRENCY if self.has_shared else 0)

    @property
    def has_shared(self) -> bool:
        """Whether it serves queues without threads of their own."""
        return not self.queues or any(name not in self.own for name in self.queues)

    @property
    def shared_threads(self) -> int:
        """How many threads run the jobs of the queues without threads of their own."""
        return self.concurrency - sum(self.own.values()) if self.has_shared else 0

    @property
    def own_threads(self) -> int:
        """How many threads run the jobs of the queues with a number, each queue at most in that many."""
        return min(self.concurrency - self.shared_threads, sum(self.own.values()))

    @property
    def threads(self) -> int:
        return self.shared_threads + self.own_threads

    def problem(self) -> str:
        """Why there are too few threads, empty if there are enough."""
        if self.concurrency > (least := sum(self.own.values())) or not self.own or not self.has_shared:
            return ""
        return (
            f"{self.concurrency} is too few: the queues with a number have {least}, and the others share the rest; "
            f"expected at least {least + 1}"
        )

    def slots(self, settings: Settings) -> int:
        """The most handlers that run at once, plain and asynchronous ones."""
        return self.threads + self.own_threads + settings.ASYNC_CONCURRENCY

    def served_queues(self) -> list[str]:
        """The queues that it reads if they exist: those that were named, or all that the code declares.

        Queues that keep dead letters of a declared queue are left out, as ``queues_of_workers`` leaves them out.
        """
        declared = conf.declared_queues() | handlers.served(handlers.all_handlers())
        names = self.queues or sorted(declared - conf.declared_dead_letters())
        return [name for name in names if name not in self.exclude]
