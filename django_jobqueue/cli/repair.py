"""The subcommand ``doctor``."""

from __future__ import annotations

from typing import Any

from django.core.management.color import Style

from ..doctor import Finding, Level, Repair, examine, repair, worst_first
from . import lake
from .answers import Answer, Code, one_line, plural

_COUNT = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTICE: "notice"}


def doctor(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Everything that is wrong. ``--fix`` repairs what can be repaired and then runs the checks again."""
    findings = examine(using=using)
    repairs: list[Repair] = []
    if options["fix"] and any(finding.is_repairable for finding in findings):
        repairs = repair(findings)
        findings = examine(using=using)
    if options["lake"] is not None:
        findings = worst_first([*findings, *lake.findings(options["lake"], options["master"])])
    document = {
        "findings": [finding.as_dict() for finding in findings],
        "repairs": [attempted.as_dict() for attempted in repairs],
    }
    bad = [finding for finding in findings if finding.level != Level.NOTICE]
    failed = [attempted for attempted in repairs if not attempted.done]
    return Answer(document, _text(findings, repairs, style), Code.FOUND if bad or failed else Code.FINE)


def _text(findings: list[Finding], repairs: list[Repair], style: Style) -> str:
    blocks = [_repaired(attempted, style) for attempted in repairs]
    blocks += [_finding(finding, style) for finding in findings]
    counts = [plural(number, _COUNT[level]) for level in Level if (number := sum(f.level == level for f in findings))]
    blocks.append(style.SUCCESS("No problem was found.") if not findings else f"{', '.join(reversed(counts))}.")
    return "\n\n".join(blocks)


def _repaired(attempted: Repair, style: Style) -> str:
    outcome = style.SUCCESS("repaired") if attempted.done else style.ERROR("not repaired")
    return f"{outcome}  {attempted.title}\n    {one_line(attempted.text)}"


def _finding(finding: Finding, style: Style) -> str:
    colour = {Level.ERROR: style.ERROR, Level.WARNING: style.WARNING, Level.NOTICE: style.NOTICE}[finding.level]
    lines = [f"{colour(finding.level.value)}  {one_line(finding.title)}  [{finding.code}]"]
    lines += [f"    {one_line(finding.detail)}", f"    Fix: {one_line(finding.fix)}"]
    return "\n".join(lines)
