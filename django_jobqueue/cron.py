"""Cron lines: whether they are valid, what they mean in English, and when they are due.

``cronsim`` parses a line and yields local times. This module decides which moments these times are, by the rule of
Debian's cron, because cronsim's own handling of clock changes loses or adds slots in zones whose clocks change by half
an hour, or at midnight:

* A line that names its minutes and hours (neither field begins with ``*``) is due once for each time that it names: in
  a repeated hour the first time, and if the clock skips the time, right after the skipped hour.
* Any other line is due whenever the clock shows such a time: twice in a repeated hour, never in a skipped hour.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from .exceptions import InvalidOption
from .text import check_text

MAX_YEARS = 50  # a line that is not due for so long is refused
MAX_CRON, MAX_TIMEZONE = 255, 64
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MINUTE = timedelta(minutes=1)

_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_HINT = "Write minute, hour, day of month, month and day of week, for example '30 2 * * 1-5'."
_CHARACTERS = re.compile(r"[0-9A-Za-z*,/#@ -]*")
_NOT_PLACES = re.compile(r"(?:posix|right)/|(?:localtime|posixrules)$")  # not the same on all machines


def check_cron(value: object, timezone: str = "UTC") -> str:
    """``value`` as a cron line that will be due at some time. Raises ``InvalidOption`` otherwise."""
    line = " ".join(check_text(value, option="cron", max_length=MAX_CRON, required=True).split())
    first_slot(line, timezone, datetime.now(UTC))
    return line


def first_slot(cron: str, timezone: str, moment: datetime) -> datetime:
    """When the line is due next after ``moment``, in UTC; ``InvalidOption`` if the line or the zone is not valid."""
    slot = next(slots_after(cron, check_timezone(timezone), moment), None) if _is_read(cron) else None
    if slot is None:
        raise InvalidOption(
            "cron", f"{cron[:60]!r} never fires", hint=f"It matches no time in the next {MAX_YEARS} years."
        )
    return slot


def check_timezone(value: object) -> str:
    """``value`` as the name of a time zone; the hint of ``InvalidOption`` names the closest time zone."""
    name = check_text(value, option="timezone", max_length=MAX_TIMEZONE, required=True)
    try:
        if not _NOT_PLACES.match(name):
            return ZoneInfo(name).key
    except (KeyError, ValueError, OSError):  # not there, not a name, not a file
        pass
    raise InvalidOption("timezone", f"there is no time zone named {name!a}", hint=_closest(name))


def slots_after(cron: str, timezone: str, moment: datetime) -> Iterator[datetime]:
    """When the line is due after ``moment``, in UTC; endless, unless the line is not due for 50 years."""
    return _walk(cron, timezone, moment, back=False)


def slots_until(cron: str, timezone: str, moment: datetime) -> Iterator[datetime]:
    """When the line was due at ``moment`` and before, in UTC, the latest first."""
    return _walk(cron, timezone, moment, back=True)


def slots_between(cron: str, timezone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """When the line is due later than ``after`` and not later than ``until``, in UTC."""
    last = until.astimezone(UTC)
    return takewhile(lambda slot: slot <= last, slots_after(cron, timezone, after))


def latest_slots(cron: str, timezone: str, after: datetime, until: datetime, count: int) -> list[datetime]:
    """The last ``count`` slots between these times, the earliest first. The time it takes depends on ``count`` only."""
    first = after.astimezone(UTC)
    slots = takewhile(lambda slot: slot > first, slots_until(cron, timezone, until))
    return list(islice(slots, count))[::-1]


def next_slots(cron: str, timezone: str, after: datetime, count: int = 5) -> list[datetime]:
    """The next ``count`` slots in local time, each with its offset from UTC."""
    zone = ZoneInfo(timezone)
    return [slot.astimezone(zone) for slot in islice(slots_after(cron, timezone, after), count)]


def describe(cron: str, timezone: str = "") -> str:
    """The line in English, followed by its time zone."""
    text = CronSim(_spelled(cron), datetime.now(UTC)).explain()
    return f"{text}, {timezone}" if timezone else text


def _spelled(line: str) -> str:
    return ALIASES.get(line.lower(), line)


def _is_read(cron: str) -> bool:
    """Whether any month has a date that the line names; ``InvalidOption`` if the line cannot be parsed."""
    if not _CHARACTERS.fullmatch(cron):
        raise InvalidOption("cron", f"{cron[:60]!a} has characters that cron lines cannot have", hint=_HINT)
    if cron.startswith("@") and cron.lower() not in ALIASES:
        raise InvalidOption("cron", f"{cron[:60]!r} is not an alias", hint=f"The aliases are {', '.join(ALIASES)}.")
    fields = _spelled(cron).split()
    if len(fields) != len(_FIELDS):
        raise InvalidOption("cron", f"expected five fields, got {len(fields)}", hint=_HINT)
    for place, name in enumerate(_FIELDS):
        if not _is_parsed(["*"] * place + [fields[place]] + ["*"] * (4 - place)):
            raise InvalidOption("cron", f"{fields[place][:40]!r} is not a valid {name}", hint=_HINT)
    return _is_parsed(fields)


def _is_parsed(fields: list[str]) -> bool:
    try:
        CronSim(" ".join(fields), datetime.now(UTC))
    except CronSimError:
        return False
    return True


def _closest(name: str) -> str:
    known = {zone.lower(): zone for zone in available_timezones() if not _NOT_PLACES.match(zone)}
    cities = {zone.rpartition("/")[2]: zone for zone in sorted(known, reverse=True)}
    lowered = name.strip().lower().replace(" ", "_")
    for names in ({zone: zone for zone in known}, cities):
        if close := get_close_matches(lowered, names, n=1, cutoff=0.75):
            return f"Did you mean {known[names[close[0]]]!r}?"
    return "Use a name of the IANA database, for example 'Europe/Berlin' or 'UTC'."


# ------------------------------------------------------------------------------------ from local times to moments


def _walk(cron: str, timezone: str, start: datetime, *, back: bool) -> Iterator[datetime]:
    previous, start = None, start.astimezone(UTC)  # without USE_TZ, times have no zone
    try:
        for slot in _moments(_spelled(cron), ZoneInfo(timezone), start, back):
            if slot != previous and (slot <= start if back else slot > start):
                yield slot
            previous = slot
    except OverflowError:  # after the last date that Python knows
        return


def _moments(line: str, zone: ZoneInfo, start: datetime, back: bool) -> Iterator[datetime]:
    """The moments of the local times that the line names, in order.

    A clock that is set back shows some times twice. Then the second moment of a time is computed before the first
    moment of the next time, and is kept in ``waiting`` until it is due.
    """
    is_named = not any(field.startswith("*") for field in line.split()[:2])
    waiting: deque[datetime] = deque()
    year = start.year
    for wall in _walls(line, zone, start, back):
        if abs(wall.year - year) > MAX_YEARS:  # it names only times that the clock skips
            break
        moments = _stands_for(wall, zone, is_named)
        if not moments:
            continue
        near, *far = moments[::-1] if back else moments
        while waiting and (waiting[0] > near if back else waiting[0] < near):
            yield waiting.popleft()
        yield near
        waiting.extend(far)
        year = wall.year
    yield from waiting


def _walls(line: str, zone: ZoneInfo, start: datetime, back: bool) -> Iterator[datetime]:
    """The local times that the line names, from the local time of ``start``.

    In a repeated hour, local times before that of ``start`` may be moments after ``start``.
    """
    here = start.astimezone(zone)
    wall = here.replace(tzinfo=None, fold=0, second=0, microsecond=0)
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    again = max(second - first, timedelta(0))
    return iter(CronSim(line, wall + MINUTE + again if back else wall - again, reverse=back))


def _stands_for(wall: datetime, zone: ZoneInfo, is_named: bool) -> list[datetime]:
    first = wall.replace(tzinfo=zone).astimezone(UTC)
    if not _shows(first, zone, wall):
        return [_after_the_jump(wall, zone)] if is_named else []
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return [first] if is_named or first == second else [first, second]


def _after_the_jump(wall: datetime, zone: ZoneInfo) -> datetime:
    while not _shows(moment := wall.replace(tzinfo=zone).astimezone(UTC), zone, wall):
        wall += MINUTE
    return moment


def _shows(moment: datetime, zone: ZoneInfo, wall: datetime) -> bool:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0) == wall
