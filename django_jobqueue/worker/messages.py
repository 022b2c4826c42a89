"""The messages that the processes of a worker send to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from ..engine.workers import Running


class ChildOrder(Enum):
    """From the supervisor to a child: a single byte, because a pipe never splits it."""

    STOP = b"s"  # claim no more; running jobs may end within the grace period
    STOP_NOW = b"r"


# ------------------------------------------------------------------------------ from the supervisor to the housekeeper


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """Send heartbeats for this child."""

    number: int  # the place of the child in its worker, which says which memory it shares
    incarnation: UUID
    name: str
    pid: int
    queues: list[str]
    is_registered: bool  # it has a row already, stored by an earlier housekeeping process


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """Recover the jobs of this child."""

    incarnation: UUID
    name: str
    how: str
    crashed: list[Running] = field(default_factory=list)  # these ran when the child ended unexpectedly
    overdue: list[Running] = field(default_factory=list)  # these ran, and their time was used up


@dataclass(frozen=True, slots=True)
class Finish:
    """Exit when the jobs of all ended children are recovered."""


Instruction = ChildStarted | ChildEnded | Finish


# ------------------------------------------------------------------------------ from the housekeeper to the supervisor


@dataclass(frozen=True, slots=True)
class DatabaseChecked:
    """What the database says before the first child starts. The supervisor does not ask it, because it forks."""

    refusal: str = ""  # why the worker cannot work at all; empty if it can
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChildLost:
    """Other workers treat this child as lost, because its heartbeat was too old, and have recovered its jobs."""

    incarnation: UUID


@dataclass(frozen=True, slots=True)
class ChildRecovered:
    """The jobs of this child, which had ended, are recovered."""

    incarnation: UUID


@dataclass(frozen=True, slots=True)
class StopRequested:
    """An operator asked the worker to stop."""


Report = DatabaseChecked | ChildLost | ChildRecovered | StopRequested
