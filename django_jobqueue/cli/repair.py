"""The subcommand ``doctor``."""

from __future__ import annotations

from typing import Any

from django.core.management.color import Style

from ..doctor import Finding, Level, Repair, examine, repair, worst_first
from . import lake
from .answers import Answer, Code, one_line, plural

_COUNT = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTICE: "notice"}


def doctor(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Everything that is wrong; with ``--fix`` what could be mended is, and what is left is looked for again."""
    found = examine(using=using)
    repairs: list[Repair] = []
    if options["fix"] and any(finding.is_repairable for finding in found):
        repairs = repair(found)
        found = examine(using=using)
    if options["lake"] is not None:
        found = worst_first([*found, *lake.findings(options["lake"], options["master"])])
    document = {
        "findings": [finding.as_dict() for finding in found],
        "repairs": [one.as_dict() for one in repairs],
    }
    bad = [finding for finding in found if finding.level != Level.NOTICE]
    failed = [one for one in repairs if not one.done]
    return Answer(document, _text(found, repairs, style), Code.FOUND if bad or failed else Code.FINE)


def _text(found: list[Finding], repairs: list[Repair], style: Style) -> str:
    blocks = [_repaired(one, style) for one in repairs]
    blocks += [_finding(finding, style) for finding in found]
    counts = [plural(number, _COUNT[level]) for level in Level if (number := sum(f.level == level for f in found))]
    blocks.append(style.SUCCESS("Nothing is wrong.") if not found else f"{', '.join(reversed(counts))}.")
    return "\n\n".join(blocks)


def _repaired(one: Repair, style: Style) -> str:
    mark = style.SUCCESS("mended") if one.done else style.ERROR("not mended")
    return f"{mark}  {one.title}\n    {one_line(one.text)}"


def _finding(finding: Finding, style: Style) -> str:
    colour = {Level.ERROR: style.ERROR, Level.WARNING: style.WARNING, Level.NOTICE: style.NOTICE}[finding.level]
    lines = [f"{colour(finding.level.value)}  {one_line(finding.title)}  [{finding.code}]"]
    lines += [f"    {one_line(finding.detail)}", f"    Fix: {one_line(finding.fix)}"]
    return "\n".join(lines)
