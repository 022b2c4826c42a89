"""Repair what the doctor found, where no decision is needed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from django.db import DatabaseError, OperationalError, transaction
from psycopg import errors

from ..conf import get_settings
from ..engine.databases import database, execute
from ..exceptions import InvalidOption
from ..services import check_lanes
from .findings import Finding, in_autocommit

TRIES = 20
ALONE = (
    "VACUUM",
    "CREATE INDEX CONCURRENTLY",
    "CREATE UNIQUE INDEX CONCURRENTLY",
    "DROP INDEX CONCURRENTLY",
    "REINDEX",
)


@dataclass(frozen=True, slots=True)
class Repair:
    """The outcome of repairing one finding."""

    code: str
    title: str
    done: bool
    text: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def repair(findings: Iterable[Finding]) -> list[Repair]:
    """Repair what can be repaired, one finding after another; a failure does not stop the others.

    Raises ``InvalidOption`` inside ``atomic()``, because indexes are built without blocking writes only outside.
    """
    repairable = [finding for finding in findings if finding.is_repairable]
    for finding in repairable:
        if not in_autocommit(database(finding.database or None)):
            raise InvalidOption("findings", "repair() cannot be called inside atomic()")
    return [_repaired(finding) for finding in repairable]


def _repaired(finding: Finding) -> Repair:
    using = database(finding.database or None)
    try:
        for statement in finding.sql:
            _run(using, statement)
        if finding.repairs_lanes:
            check_lanes(using=using)
    except DatabaseError as error:
        return Repair(finding.code, finding.title, False, " ".join(str(error).split()))
    return Repair(finding.code, finding.title, True, "; ".join(finding.sql) or "released")


def _run(using: str, statement: str) -> None:
    """Run a statement. One that locks out other sessions waits only a moment for its lock, and then tries again."""
    if statement.startswith(ALONE):
        execute(using, statement)
        return
    limit = get_settings().LOCK_TIMEOUT_MS
    for tries_left in reversed(range(TRIES)):
        try:
            with transaction.atomic(using=using):
                execute(using, "SELECT set_config('lock_timeout', %s, true)", [f"{min(limit, 500)}ms"])
                execute(using, statement)
            return
        except OperationalError as error:
            if not tries_left or not isinstance(error.__cause__, errors.LockNotAvailable):
                raise
        time.sleep(limit / 1000 / TRIES)
