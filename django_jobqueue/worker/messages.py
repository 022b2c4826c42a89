"""What the processes of a worker tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from ..engine.workers import Running


class ChildOrder(Enum):
    """From the supervisor to a child: one byte, because a pipe delivers that whole."""

    STOP = b"s"  # claim no more; running jobs may end within the grace period
    STOP_NOW = b"r"


# ------------------------------------------------------------------------------ from the supervisor to the housekeeper


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """Send heartbeats for this child."""

    number: int  # which of the worker's children, and so which memory it shares
    incarnation: UUID
    name: str
    pid: int
    queues: list[str]
    is_registered: bool  # it has a row already, because an earlier housekeeper stored it


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """Recover the jobs of this child."""

    incarnation: UUID
    name: str
    how: str
    crashed: list[Running] = field(default_factory=list)  # they ran when it died by itself
    overdue: list[Running] = field(default_factory=list)  # they ran, and had used up their time


@dataclass(frozen=True, slots=True)
class Finish:
    """Leave when the jobs of all ended children are recovered."""


Instruction = ChildStarted | ChildEnded | Finish


# ------------------------------------------------------------------------------ from the housekeeper to the supervisor


@dataclass(frozen=True, slots=True)
class ChildLost:
    """Other workers have given up this child, because it was silent, and have recovered its jobs."""

    incarnation: UUID


@dataclass(frozen=True, slots=True)
class ChildRecovered:
    """The jobs of this child, which has ended, are recovered."""

    incarnation: UUID


@dataclass(frozen=True, slots=True)
class StopRequested:
    """An operator asked the worker to stop."""


Report = ChildLost | ChildRecovered | StopRequested
