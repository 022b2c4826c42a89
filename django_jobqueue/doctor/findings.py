"""What the doctor finds, and how it looks: every look is bounded, and one that fails says so and stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from django.db import DatabaseError, connections, transaction

from ..engine.databases import execute, rows
from ..services.inspect.lists import by_index as planned_by_index
from ..timings import OVERDUE_SECONDS

LOOK_TIMEOUT = "10s"


class Level(StrEnum):
    NOTICE = "notice"  # worth knowing
    WARNING = "warning"  # will hurt
    ERROR = "error"  # hurts now


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what it means, and the exact command that mends it."""

    code: str
    level: Level
    title: str
    detail: str
    fix: str
    facts: dict[str, Any] = field(default_factory=dict)
    database: str = ""
    sql: tuple[str, ...] = ()  # what repair() runs, in order
    repairs_lanes: bool = False

    @property
    def is_repairable(self) -> bool:
        return bool(self.sql) or self.repairs_lanes

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = {name: value for name, value in asdict(self).items() if name not in ("sql", "repairs_lanes")}
        return named | {"level": self.level.value, "repairable": self.is_repairable, "sql": list(self.sql)}


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on something is worth a word."""

    transaction_seconds: float = 300
    dead_rows: int = 20_000
    dead_share: float = 0.2  # of the live rows
    clock_seconds: float = 2.0
    notify_share: float = 0.5
    sequence_share: float = 0.9
    overdue_seconds: float = OVERDUE_SECONDS  # an active job past its time, or a schedule past its slot
    uncleaned_seconds: float = 86_400  # a finished job past the time it is to be deleted
    kept_rows: int = 100_000  # in the part of a queue that deletes nothing
    sample: int = 1_000  # waiting jobs of a queue whose handlers are looked up
    listed: int = 10  # examples named in a finding


Look = Callable[[str, Limits], Iterable[Finding]]


def looked(look: Look, using: str, limits: Limits, *, by_index: bool = False) -> Iterator[Finding]:
    """What one look finds; what it could not see, because it took too long or was not allowed to, is a finding too.

    It runs in a transaction, or, inside a caller's, under a savepoint, with a limit of time per statement. A look at
    jobs is planned ``by_index``, see ``engine.sql.session``; one at the catalog would only suffer from that.
    """
    try:
        with transaction.atomic(using=using):
            before = rows(using, "SELECT current_setting('statement_timeout')")[0][0]
            _set(using, "statement_timeout", LOOK_TIMEOUT)
            asked = partial(_all, look, using, limits)
            found = planned_by_index(asked, using=using) if by_index else asked()
            _set(using, "statement_timeout", before)
    except DatabaseError as error:
        yield could_not_look(look.__name__.strip("_"), using, error)
    else:
        yield from found


def _all(look: Look, using: str, limits: Limits) -> list[Finding]:
    return list(look(using, limits))


def could_not_look(what: str, using: str, error: BaseException) -> Finding:
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return Finding(
        "not_looked",
        Level.NOTICE,
        f"Could not look at {what.replace('_', ' ')}",
        f"The database said: {text}",
        "Try again when the server is less busy, or as a role that may: GRANT pg_monitor TO the role of Django.",
        {"look": what},
        using,
    )


def _set(using: str, name: str, value: str) -> None:
    execute(using, "SELECT set_config(%s, %s, true)", [name, value])


def in_autocommit(using: str) -> bool:
    return connections[using].get_autocommit() and not connections[using].in_atomic_block


def counted(number: int, one: str, many: str = "", *, most: int = 0) -> str:
    """``1 job``, ``5 jobs``, and where nobody counted further than ``most``: ``1,000 or more jobs``."""
    if number == 1:
        return f"1 {one}"
    more = " or more" if 0 < most <= number else ""
    return f"{number:,}{more} {many or one + 's'}"


def ago(seconds: float) -> str:
    """``12 min``, ``3 h``, ``2 days``: one unit is enough to act."""
    for unit, size in (("days", 86_400 * 2), ("h", 7_200), ("min", 120)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
