"""What the doctor finds, and how its checks run: each is bounded, and one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from django.db import DatabaseError, connections, transaction

from ..engine.databases import rows
from ..services.inspect.lists import by_index as planned_by_index
from ..timings import OVERDUE_SECONDS

LOOK_TIMEOUT = "10s"
SWAP_TIMEOUT = "SELECT current_setting('statement_timeout'), set_config('statement_timeout', %s, true)"


class Level(StrEnum):
    NOTICE = "notice"  # worth knowing
    WARNING = "warning"  # will become a problem
    ERROR = "error"  # is a problem now


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: what it means, and the exact command that fixes it."""

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
        """The finding as JSON types."""
        named = {name: value for name, value in asdict(self).items() if name not in ("sql", "repairs_lanes")}
        return named | {"level": self.level.value, "repairable": self.is_repairable, "sql": list(self.sql)}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits above which the doctor reports something."""

    transaction_seconds: float = 300
    dead_rows: int = 20_000
    dead_share: float = 0.2  # of the live rows
    clock_seconds: float = 2.0
    notify_share: float = 0.5
    sequence_share: float = 0.9
    overdue_seconds: float = OVERDUE_SECONDS  # an active job past its deadline, or a schedule past its slot
    uncleaned_seconds: float = 86_400  # a finished job past its time to be deleted
    kept_rows: int = 100_000  # in the partition of a queue that deletes nothing
    sample: int = 1_000  # waiting jobs of a queue whose handlers are looked up
    listed: int = 10  # examples named in a finding


Look = Callable[[str, Limits], Iterable[Finding]]


def findings_of(look: Look, using: str, limits: Limits, *, by_index: bool = False) -> Iterator[Finding]:
    """The findings of one check. If it takes too long or lacks a permission, that is a finding too.

    It runs in a transaction, or in a savepoint of the caller's transaction, with a time limit for each statement.
    Checks of jobs are planned ``by_index``, see ``engine.sql.session``; checks of the catalog would be slower that way.
    """
    try:
        with transaction.atomic(using=using):
            before = rows(using, SWAP_TIMEOUT, [LOOK_TIMEOUT])[0][0]
            check = partial(_all, look, using, limits)
            findings = planned_by_index(check, using=using) if by_index else check()
            rows(using, SWAP_TIMEOUT, [before])
    except DatabaseError as error:
        yield could_not_look(look.__name__.strip("_"), using, error)
    else:
        yield from findings


def _all(look: Look, using: str, limits: Limits) -> list[Finding]:
    return list(look(using, limits))


def findings_of_all(looks: Sequence[Look], using: str, limits: Limits, *, by_index: bool = False) -> list[Finding]:
    """The findings of several checks, in one transaction; if one fails, each is made again in its own."""

    def check() -> list[Finding]:
        return [finding for look in looks for finding in look(using, limits)]

    try:
        with transaction.atomic(using=using):
            before = rows(using, SWAP_TIMEOUT, [LOOK_TIMEOUT])[0][0]
            findings = planned_by_index(check, using=using) if by_index else check()
            rows(using, SWAP_TIMEOUT, [before])
    except DatabaseError:
        return [finding for look in looks for finding in findings_of(look, using, limits, by_index=by_index)]
    return findings


def could_not_look(what: str, using: str, error: BaseException) -> Finding:
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return Finding(
        "not_looked",
        Level.NOTICE,
        f"Could not check: {what.replace('_', ' ')}",
        f"The database answered: {text}",
        "Try again when the server is less busy, or grant Django's role the permission: GRANT pg_monitor TO the role.",
        {"look": what},
        using,
    )


def in_autocommit(using: str) -> bool:
    return connections[using].get_autocommit() and not connections[using].in_atomic_block


def counted(number: int, singular: str, plural: str = "", *, most: int = 0) -> str:
    """``1 job``, ``5 jobs``, and if the count stopped at ``most``: ``1,000 or more jobs``."""
    if number == 1:
        return f"1 {singular}"
    more = " or more" if 0 < most <= number else ""
    return f"{number:,}{more} {plural or singular + 's'}"


def ago(seconds: float) -> str:
    """``12 min``, ``3 h``, ``2 days``: a duration in one unit."""
    for unit, size in (("days", 86_400 * 2), ("h", 7_200), ("min", 120)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3_600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
