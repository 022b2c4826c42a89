"""Find problems of the queues, the server and the project, and repair those that need no decision."""

from __future__ import annotations

from collections.abc import Iterable

from ..engine.databases import database, rows
from . import indexes, schema, server, upkeep, work
from .findings import Finding, Level, Limits, findings_of, findings_of_all
from .repairing import Repair, repair

__all__ = ["Finding", "Level", "Limits", "Repair", "examine", "repair", "worst_first"]

ORDER = (Level.ERROR, Level.WARNING, Level.NOTICE)


def examine(*, using: str | None = None, limits: Limits | None = None, thorough: bool = True) -> list[Finding]:
    """Run all checks, change nothing, and return what is wrong, the worst first.

    It is safe on a busy server: each check reads the catalog, or a bounded number of rows along an index. Without
    ``thorough`` it leaves out two checks: the comparison of index definitions, which creates temporary tables, and the
    search for stranded lanes, which takes a statement for each queue.
    """
    using, limits = database(using), limits or Limits()
    findings = list(findings_of(schema.unapplied_migrations, using, limits))
    if rows(using, "SELECT to_regclass('jobqueue_job')")[0][0] is not None:
        findings += server.pooler(using)  # it compares transactions, so it cannot run inside one
        findings += findings_of_all((*server.LOOKS, indexes.indexes, *schema.LOOKS), using, limits)
        findings += findings_of_all((*work.LOOKS, *upkeep.LOOKS), using, limits, by_index=True)
        if thorough:
            findings += findings_of(indexes.index_definitions, using, limits)
            findings += findings_of(upkeep.stranded_lanes, using, limits, by_index=True)
    return worst_first(findings)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: ORDER.index(finding.level))
