"""Cron lines against an oracle that looks at every minute, through clock changes of all kinds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from django_jobqueue import cron
from django_jobqueue.exceptions import InvalidOption

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

# ---------------------------------------------------------------------------------------------------------- the oracle
#
# The rule, as Debian's cron(8) and cronsim document it. A line is looked at for every minute:
#
# * It names a time on the wall if all its fields hold. Day of month and day of week must both hold if one of them
#   begins with a star, otherwise one is enough.
# * If its minute or its hour begins with a star, it is due in every minute whose time on the wall it names: twice in
#   an hour that comes twice, and not at all for times that the clock jumps over.
# * Otherwise it is due once for each time that it names: only the first time if that comes twice, and in the first
#   minute after a jump if the clock jumped over a time that it names.

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
NAMES = {name: str(number) for first, listed in ((1, MONTHS), (0, DAYS)) for number, name in enumerate(listed, first)}


def is_due(line: str, moment: datetime, zone: ZoneInfo) -> bool:
    """Whether this is a minute in which the line is due."""
    wall = moment.astimezone(zone)
    if any(field.startswith("*") for field in parts(line)[:2]):
        return names(line, wall)
    naive, before = wall.replace(tzinfo=None), (moment - MINUTE).astimezone(zone).replace(tzinfo=None)
    jumped_over = [before + MINUTE * n for n in range(1, max(0, (naive - before) // MINUTE))]
    return (names(line, wall) and not wall.fold) or any(names(line, skipped) for skipped in jumped_over)


def names(line: str, wall: datetime) -> bool:
    minute, hour, day, month, weekday = parts(line)
    if not (holds(minute, wall.minute, 0, 59) and holds(hour, wall.hour, 0, 23) and holds(month, wall.month, 1, 12)):
        return False
    of_month, of_week = holds_day(day, wall), holds_weekday(weekday, wall)
    both = day.startswith("*") or weekday.startswith("*")
    return (of_month and of_week) if both else (of_month or of_week)


@cache
def parts(line: str) -> list[str]:
    return line.upper().split()


@cache
def holds(field: str, value: int, low: int, high: int) -> bool:
    return any(_holds(term, value, low, high) for term in field.split(","))


def _holds(term: str, value: int, low: int, high: int) -> bool:
    body, _, step = term.partition("/")
    first, _, last = body.partition("-")
    if body == "*":
        first, last = str(low), str(high)
    elif not last:
        last = str(high) if step else first
    start, end = int(NAMES.get(first, first)), int(NAMES.get(last, last))
    return start <= value <= end and (value - start) % int(step or 1) == 0


def holds_day(field: str, wall: datetime) -> bool:
    return any(_holds_day(term, wall) for term in field.split(","))


def _holds_day(term: str, wall: datetime) -> bool:
    if term == "L":
        return (wall + DAY).month != wall.month
    if term == "LW":
        rest = [wall + DAY * n for n in range(1, 31) if (wall + DAY * n).month == wall.month]
        return wall.weekday() < 5 and not any(day.weekday() < 5 for day in rest)
    return _holds(term, wall.day, 1, 31)


def holds_weekday(field: str, wall: datetime) -> bool:
    numbers = {wall.isoweekday(), wall.isoweekday() % 7}  # Sunday is 7 and 0
    return any(_holds_weekday(term, number, wall) for term in field.split(",") for number in numbers)


def _holds_weekday(term: str, number: int, wall: datetime) -> bool:
    if term.endswith("L"):
        return int(term[:-1]) == number and (wall + 7 * DAY).month != wall.month
    if "#" in term:
        name, _, nth = term.partition("#")
        return int(NAMES.get(name, name)) == number and (wall.day - 1) // 7 + 1 == int(nth)
    return _holds(term, number, 0, 7)


def oracle(line: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    """The minutes in which the line is due, later than ``after`` and not later than ``until``."""
    place = ZoneInfo(zone)
    start = after.replace(second=0, microsecond=0) + MINUTE
    minutes = (start + MINUTE * n for n in range((until - start) // MINUTE + 1))
    return [moment for moment in minutes if is_due(line, moment, place)]


@cache
def clock_changes(zone: str, year: int) -> list[datetime]:
    """The first moments of that year with another offset than the minute before."""
    place, start = ZoneInfo(zone), datetime(year, 1, 1, tzinfo=UTC)
    hours = [start + HOUR / 4 * n for n in range(4 * 24 * 366)]
    changed = [
        after
        for before, after in pairwise(hours)
        if before.astimezone(place).utcoffset() != after.astimezone(place).utcoffset()
    ]
    return [moment for moment in changed if moment.year == year]


# Two changes in each of these years; the last two zones had their last, at midnight, or have none.
CHANGES = {
    "Europe/Berlin": 2026,
    "America/New_York": 2026,
    "Australia/Lord_Howe": 2026,  # by half an hour
    "Pacific/Chatham": 2026,  # at a quarter to
    "Africa/Casablanca": 2026,  # around Ramadan
    "Africa/Cairo": 2026,  # at midnight
    "America/Sao_Paulo": 2018,  # at midnight, until 2019
    "Asia/Kolkata": 2026,
}
LINES = (
    "30 2 * * *", "*/30 * * * *", "0 * * * *", "* * * * *", "0 0 * * *", "59 23 * * *", "15,45 1-3 * * *",
    "*/15 2 * * *", "*/10 0 * * *", "0 */2 * * *", "7 */3 * * *", "* 1,3 * * 0", "0-59/20 0-3 * * *", "5 4 * * SUN",
    "20 1-4/2 L * *", "45 2 LW * *", "10 0 * * 0L", "0 0-23 * * *", "30 3 1,15 * SUN", "* 2 */2 * 1-5",
)  # fmt: skip
MOMENTS = {zone: clock_changes(zone, year) or [datetime(2026, 3, 29, 1, tzinfo=UTC)] for zone, year in CHANGES.items()}


def test_the_zones_have_the_clock_changes_that_are_meant():
    assert {zone: len(clock_changes(zone, year)) for zone, year in CHANGES.items()} == {
        zone: 0 if zone == "Asia/Kolkata" else 2 for zone in CHANGES
    }


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("zone", CHANGES)
def test_slots_around_clock_changes_are_those_of_the_oracle(zone, line):  # R367 R368 G9
    for change in MOMENTS[zone]:
        after, until = change - 30 * HOUR, change + 30 * HOUR
        expected = oracle(line, zone, after, until)

        assert list(cron.slots_between(line, zone, after, until)) == expected
        assert [*takewhile(lambda slot: slot > after, cron.slots_until(line, zone, until))] == expected[::-1]  # noqa: B023
        assert cron.latest_slots(line, zone, after, until, 7) == expected[-7:]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("zone", CHANGES)
def test_it_does_not_matter_from_which_moment_one_looks(zone, line):  # G9
    for change in MOMENTS[zone]:
        expected = oracle(line, zone, change - 5 * HOUR, change + 8 * HOUR)
        for start in (change + MINUTE * n + timedelta(seconds=n % 3) for n in range(-150, 151, 17)):
            ahead = [slot for slot in expected if slot > start][:3]
            behind = [slot for slot in expected if slot <= start][-3:]
            assert list(islice(cron.slots_after(line, zone, start), len(ahead))) == ahead
            assert [*islice(cron.slots_until(line, zone, start), len(behind))] == behind[::-1]


# -------------------------------------------------------------------------------------------------- lines of all kinds


def terms(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    # A span of one with a step is left out: cronsim takes 5-5/2 for 5/2, Debian for 5, and it is not used in practice.
    span = (
        st.tuples(number, number)
        .filter(lambda pair: pair[0] != pair[1])
        .map(lambda pair: "{}-{}".format(*sorted(pair)))
    )
    step = st.integers(1, 12)
    return st.one_of(
        number.map(str),
        span,
        st.just("*"),
        st.tuples(st.one_of(st.just("*"), span, number.map(str)), step).map(lambda pair: f"{pair[0]}/{pair[1]}"),
    )


def fields(low: int, high: int, *more: str) -> st.SearchStrategy[str]:
    term = st.one_of(terms(low, high), st.sampled_from(more)) if more else terms(low, high)
    return st.one_of(st.just("*"), term, st.lists(term, min_size=2, max_size=3).map(",".join))


lines = st.tuples(
    fields(0, 59),
    fields(0, 23),
    st.one_of(st.just("*"), fields(1, 31, "L", "LW")),
    st.one_of(st.just("*"), fields(1, 12, "MAR", "OCT")),
    st.one_of(st.just("*"), fields(0, 7, "SUN", "0L", "5L", "MON#1", "7#2", "3#5")),
).map(" ".join)
zones = st.sampled_from([*CHANGES, "UTC", "Asia/Kathmandu", "America/St_Johns", "Europe/Dublin", "Antarctica/Troll"])
moments = st.one_of(
    st.builds(lambda zone, n, m: MOMENTS[zone][n % len(MOMENTS[zone])] + MINUTE * m,
              st.sampled_from(list(CHANGES)), st.integers(0, 1), st.integers(-2000, 600)),
    st.datetimes(datetime(1995, 1, 1), datetime(2080, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)  # fmt: skip


@settings(max_examples=120, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking is slow
@given(lines, zones, moments)
@example("* 3 * * *", "Pacific/Chatham", datetime(2026, 4, 4, 13, 50, tzinfo=UTC))  # cronsim alone goes in a circle
@example("*/30 2 * * *", "Australia/Lord_Howe", datetime(2026, 4, 4, 14, 50, tzinfo=UTC))  # it loses a slot
@example("* 0 24 4 *", "Africa/Cairo", datetime(2026, 4, 23, 14, 50, tzinfo=UTC))  # it invents one
def test_any_line_in_any_zone_is_due_when_the_oracle_says(line, zone, after):  # G9
    until = after + 36 * HOUR
    expected = oracle(line, zone, after, until)

    if not is_accepted(line, zone):
        assert not expected
        return
    assert list(cron.slots_between(line, zone, after, until)) == expected
    assert cron.latest_slots(line, zone, after, until, 5000) == expected
    assert cron.describe(line, zone).endswith(zone)


def is_accepted(line: str, zone: str = "UTC") -> bool:
    """Whether the line is; if it is refused for another reason than a date that never comes, its test fails."""
    try:
        return cron.check_cron(line, zone) == line
    except InvalidOption as error:
        if "never fires" not in str(error):
            raise
        return False


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=20),
        st.text(alphabet="0123456789*/,-#LWlw @MONsun\t\n", max_size=30),
        st.lists(st.text(alphabet="0159*/,-#LW", max_size=5), min_size=5, max_size=6).map(" ".join),
    )
)
@example("0 0 * * L")
@example("0 0 L/2 * *")
@example("0 0 * * 1L/2")
@example(f"{'9' * 200} * * * *")
def test_any_text_is_a_line_or_is_refused(text):  # R315
    with suppress(InvalidOption):
        line = cron.check_cron(text)

        assert line == " ".join(text.split())
        assert next(cron.slots_after(line, "UTC", datetime.now(UTC))) > datetime.now(UTC)
        assert cron.describe(line)


# ------------------------------------------------------------------------------------------------------- as documented


def walls(line: str, zone: str, after: datetime, count: int) -> list[str]:
    return [f"{slot:%d %H:%M%z}" for slot in cron.next_slots(line, zone, after, count)]


def test_half_past_two_comes_once_a_day_through_a_jump_and_a_repeated_hour():  # G9 F45
    spring, autumn = datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)

    assert walls("30 2 * * *", "Europe/Berlin", spring, 3) == ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"]
    assert walls("30 2 * * *", "Europe/Berlin", autumn, 3) == ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"]


def test_every_half_hour_comes_four_times_in_the_repeated_hour():  # G9 F45
    before = datetime(2026, 10, 24, 23, 45, tzinfo=UTC)

    assert walls("*/30 * * * *", "Europe/Berlin", before, 5) == [
        "25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100", "25 03:00+0100",
    ]  # fmt: skip


def test_two_times_that_the_clock_jumps_over_are_one_slot_after_the_jump():  # G9
    spring = datetime(2026, 3, 29, tzinfo=UTC)

    assert walls("0,30 2,3 * * *", "Europe/Berlin", spring, 3) == ["29 03:00+0200", "29 03:30+0200", "30 02:00+0200"]


def days(line: str, count: int) -> Iterator[str]:
    return (f"{slot:%Y-%m-%d}" for slot in cron.next_slots(line, "UTC", datetime(2026, 1, 30, 12, tzinfo=UTC), count))


@pytest.mark.parametrize(
    ("line", "expected"),
    (
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29"]),
        ("0 0 31 * *", ["2026-01-31", "2026-03-31", "2026-05-31"]),
        ("0 0 L * *", ["2026-01-31", "2026-02-28", "2026-03-31"]),
        ("0 0 LW * *", ["2026-02-27", "2026-03-31", "2026-04-30"]),
        ("0 0 * * 1L", ["2026-02-23", "2026-03-30", "2026-04-27"]),
        ("0 0 * * MON#5", ["2026-03-30", "2026-06-29"]),
        ("0 0 * 2 MON#5", ["2044-02-29", "2072-02-29"]),
        ("0 0 30 2 MON", ["2026-02-02", "2026-02-09"]),  # either is enough, and there are Mondays
        ("@yearly", ["2027-01-01"]),
        ("@MONTHLY", ["2026-02-01"]),
    ),
)
def test_rare_days_are_found(line, expected):  # F46
    assert cron.check_cron(line) == line
    assert list(days(line, len(expected))) == expected


@pytest.mark.parametrize("line", ("0 0 30 2 *", "0 0 31 2,4,6 *", "* * */20 * 1L", "0 0 31 4 */2"))
def test_what_never_fires_is_refused(line):  # F46
    with pytest.raises(InvalidOption, match="never fires"):
        cron.check_cron(line)


def test_what_names_only_times_that_the_clock_jumps_over_never_fires():  # F46
    line = "*/30 2 * 3 0L"  # the last Sunday of March

    assert cron.check_cron(line, "UTC") == line
    with pytest.raises(InvalidOption, match="never fires"):
        cron.check_cron(line, "Europe/Berlin")


def test_nothing_takes_long():  # F46
    started = time.monotonic()
    now = datetime(2026, 6, 1, tzinfo=UTC)

    for line in ("* * */20 * 1L", "*/30 2 * 3 0L", "0 0 * 2 MON#5", "0 0 29 2 MON#5"):
        next(cron.slots_after(line, "Europe/Berlin", now), None)
    for line in ("* * * * *", "* * * 1 *"):
        assert len(cron.latest_slots(line, "Europe/Berlin", now - 3650 * DAY, now, 100)) == 100

    assert time.monotonic() - started < 5


def test_there_is_an_end_to_all_dates():
    assert list(cron.slots_after("0 0 1 1 *", "UTC", datetime(9998, 6, 1, tzinfo=UTC))) == [
        datetime(9999, 1, 1, tzinfo=UTC)
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    (
        ("61 * * * *", "'61' is not a valid minute"),
        ("* 24 * * *", "'24' is not a valid hour"),
        ("* * 0 * *", "'0' is not a valid day-of-month"),
        ("* * * 13 *", "'13' is not a valid month"),
        ("* * * * 8", "'8' is not a valid day-of-week"),
        ("* * * *", "expected five fields, got 4"),
        ("0 * * * * *", "expected five fields, got 6"),
        ("@reboot", "The aliases are @hourly"),
        ("* * * * mön", "characters that cron lines cannot have"),
        ("", "must not be empty"),
        (None, "expected a string"),
        ("* " * 200, "the limit is 255"),
    ),
)
def test_a_line_that_makes_no_sense_is_refused_with_what_is_wrong(line, told):  # R367 R315
    with pytest.raises(InvalidOption) as caught:
        cron.check_cron(line)

    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "closest"),
    (
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("Mars/Olympus", "IANA"),
        ("localtime", "IANA"),
        ("right/UTC", "IANA"),
        ("../../etc/passwd", "IANA"),
        ("/etc/localtime", "IANA"),
    ),
)
def test_an_unknown_zone_is_told_with_the_closest(name, closest):  # R368
    with pytest.raises(InvalidOption) as caught:
        cron.check_timezone(name)

    assert caught.value.option == "timezone"
    assert closest in str(caught.value)


@pytest.mark.parametrize("name", ("", None, 5, "Europe", "a\0b", "x" * 100, "tzdata.zi"))
def test_what_cannot_be_a_zone_is_refused(name):  # R368 R315
    with pytest.raises(InvalidOption):
        cron.check_timezone(name)


@pytest.mark.parametrize("name", ("UTC", "Europe/Berlin", "Pacific/Chatham", "EST5EDT"))
def test_zones_are_known_by_their_names(name):  # R368
    assert cron.check_timezone(name) == name


@pytest.mark.parametrize(
    ("line", "zone", "text"),
    (
        ("30 2 * * *", "Europe/Berlin", "At 02:30 every day, Europe/Berlin"),
        ("*/5 9-17 * * 1-5", "", "Every fifth minute from 09:00 through 17:59 on Monday through Friday"),
        ("@hourly", "UTC", "At the start of every hour, UTC"),
        ("0 0 L * *", "", "At 00:00 on the last day of every month"),
    ),
)
def test_a_line_is_told_in_english(line, zone, text):
    assert cron.describe(line, zone) == text
