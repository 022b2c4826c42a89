"""Finding what is wrong with the queue, the server and the project, and mending what needs no judgement."""

from __future__ import annotations

from collections.abc import Iterable

from ..engine.databases import database, rows
from . import indexes, schema, server, upkeep, work
from .findings import Finding, Level, Limits, looked
from .repairing import Repair, repair

__all__ = ["Finding", "Level", "Limits", "Repair", "examine", "repair", "worst_first"]

ORDER = (Level.ERROR, Level.WARNING, Level.NOTICE)


def examine(*, using: str | None = None, limits: Limits | None = None) -> list[Finding]:
    """Look at everything, change nothing, and return what is wrong, the worst first.

    Safe on a busy server: each look reads a bounded number of rows by an index, or the catalog.
    """
    using, limits = database(using), limits or Limits()
    found = list(looked(schema.unapplied_migrations, using, limits))
    if rows(using, "SELECT to_regclass('jobqueue_job')")[0][0] is not None:
        found += server.pooler(using)  # compares transactions, so it cannot run inside one
        for look in (*server.LOOKS, *indexes.LOOKS, *schema.LOOKS):
            found += looked(look, using, limits)
        for look in (*work.LOOKS, *upkeep.LOOKS):
            found += looked(look, using, limits, by_index=True)
    return worst_first(found)


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda finding: ORDER.index(finding.level))
