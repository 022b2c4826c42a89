"""The answer of a subcommand: a JSON document, text for the terminal, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any
from uuid import UUID

from django.core.management.color import Style
from django.utils.timezone import is_naive, localtime

from ..states import DEAD, JobState

WIDEST = 60  # characters of a column; the JSON has all of them
GAP = "  "


class Code(IntEnum):
    """The exit codes; scripts rely on them."""

    FINE = 0
    FOUND = 1
    WRONG = 2
    MISSING = 3
    DATABASE = 4
    LAKE = 5
    UNEXPECTED = 6
    INTERRUPTED = 130


MEANINGS = {
    Code.FINE: "done; nothing was refused and no problem was found",
    Code.FOUND: "something was refused or not confirmed; or (blocked, doctor, audit) a problem was found",
    Code.WRONG: "wrong usage or bad input; nothing was done",
    Code.MISSING: "there is no such job or queue; nothing was done",
    Code.DATABASE: "the database could not be reached, or refused a statement",
    Code.LAKE: "the lake, Spark or an output file could not be used; nothing is lost",
    Code.UNEXPECTED: "an unexpected error, which is a bug; --traceback shows where",
    Code.INTERRUPTED: "interrupted",
}


@dataclass(slots=True)
class Answer:
    """The answer as a JSON document and as text, with its exit code."""

    document: Any
    text: str
    code: Code = Code.FINE


def as_json(document: Any) -> str:
    """The JSON text of a document: times in ISO 8601 with their offset, durations in seconds."""
    return json.dumps(document, default=_plain, indent=2, ensure_ascii=False)


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return here(value).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    return str(value)


# ------------------------------------------------------------------------------------------------ for the terminal


def table(head: Sequence[str], rows: Iterable[Sequence[object]], style: Style) -> str:
    """Aligned columns, numbers to the right; a wide cell is cut."""
    lines = list(rows)
    cells = [[shown(value) for value in row] for row in lines]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    right = [bool(lines) and all(_is_number(row[place]) for row in lines) for place in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return GAP.join(parts).rstrip()

    return "\n".join([style.MIGRATE_HEADING(line(head)), *map(line, cells)])


def facts(pairs: Iterable[tuple[str, object]], style: Style) -> str:
    """One fact per line, empty ones left out; a text of several lines is printed below its name."""
    known = [(name, _long(value)) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in known), default=0)
    lines = []
    for name, text in known:
        apart = "\n" in text
        value = "\n" + _indented(text) if apart else text
        lines.append(f"{style.MIGRATE_LABEL(name.ljust(width))}{GAP}{value}".rstrip())
    return "\n".join(lines)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _long(value: object) -> str:
    if isinstance(value, dict | list) and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
        return json.dumps(value, default=_plain, indent=2, ensure_ascii=False)
    return shown(value, widest=None)


def shown(value: object, *, widest: int | None = WIDEST) -> str:
    """A value as the text of one cell: times in the current time zone, numbers with separators, ``None`` as nothing."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return f"{here(value):%Y-%m-%d %H:%M:%S %Z}".strip()
        case timedelta():
            return duration(value)
        case UUID():
            return str(value)
        case list() | tuple() | frozenset():
            text = ", ".join(map(str, value))
        case _:
            text = str(value)
    text = _printable(text) if widest is None else one_line(text)
    return text if widest is None or len(text) <= widest else f"{text[: widest - 1]}…"


def here(moment: datetime) -> datetime:
    """The time in the current time zone, if ``USE_TZ`` is on."""
    return moment if is_naive(moment) else localtime(moment)


def one_line(text: str) -> str:
    """``text`` without line breaks and control characters, because an error may contain anything."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def _printable(text: str) -> str:
    return "\n".join("".join(c if c.isprintable() else " " for c in line).rstrip() for line in text.strip().split("\n"))


def duration(value: timedelta) -> str:
    """``2d 3h``, ``5m 10s``, ``0.4s``: a duration in its two largest units."""
    seconds = value.total_seconds()
    if abs(seconds) < 10:
        return f"{seconds:.1f}s"
    sign, rest, parts = "-" if seconds < 0 else "", int(abs(seconds)), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        number, rest = divmod(rest, size)
        if number:
            parts.append(f"{number}{unit}")
    return sign + " ".join(parts[:2])


def state_in_colour(state: str, style: Style) -> str:
    """The state in red if the job failed for good, in green if it completed, and without colour otherwise."""
    if state in DEAD:
        return str(style.ERROR(state))
    return str(style.SUCCESS(state)) if state == JobState.COMPLETED else state


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float | timedelta) and not isinstance(value, bool))


def plural(number: int, singular: str, several: str = "") -> str:
    return f"1 {singular}" if number == 1 else f"{number:,} {several or singular + 's'}"
