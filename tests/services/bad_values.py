"""Values that make no sense, by the kind of what they are given for."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

SOME_ID = UUID("0198c0de-0000-7000-8000-000000000001")
NAN, INFINITY = float("nan"), float("inf")
NUL, SURROGATE = "nul \0", "lone \ud800"

IDS: tuple[Any, ...] = (
    None, "", " ", "nope", "x" * 10_000, 0, 5, 1.5, True, SOME_ID.bytes, object(), f"{SOME_ID}\0",
    f"{SOME_ID} ", "' OR 1=1 --", "0" * 31, "\u0661" * 32,
)  # fmt: skip
QUEUES: tuple[Any, ...] = (
    "", " ", NUL, SURROGATE, "x" * 10_000, 0, 5, 1.5, True, b"work", ["work"], {"work"}, object(), "WORK", "work ",
    "w\u043erk", "'; DROP TABLE jobqueue_job; --", "%s", "{}", "%", "_",
)  # fmt: skip
TEXTS: tuple[Any, ...] = (5, 0, 1.5, True, False, b"x", b"", ["x"], [], {}, object(), NUL, SURROGATE, "x" * 256)
TAGS: tuple[Any, ...] = (
    "red", b"red", 5, True, {"a": 1}, [""], [None], [5], [b"x"], [["x"]], ["x" * 101], [NUL], [SURROGATE], object(),
    [str(number) for number in range(51)],
)  # fmt: skip
COUNTS: tuple[Any, ...] = (-1, 1.5, "1", True, NAN, INFINITY, 2**31, 10**400, b"1", [], object())
SECONDS: tuple[Any, ...] = (-1, "5", True, NAN, INFINITY, -INFINITY, 1e300, 10**400, b"5", [5], object())
FAR_EAST, FAR_WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
TIMES: tuple[Any, ...] = (
    datetime(2030, 1, 1), date(2030, 1, 1), "2030-01-01T00:00:00Z", 5, True, timedelta(1), object(),  # noqa: DTZ001
    datetime.max.replace(tzinfo=FAR_WEST), datetime.min.replace(tzinfo=FAR_EAST),
)  # fmt: skip
UUIDS: tuple[Any, ...] = ("nope", "", 5, True, b"x", object())
STATES: tuple[Any, ...] = ("", "nope", "CREATED", 5, True, ["created"], {"created"}, object(), NUL)

# Each with the path that its error must name.
DATA: tuple[tuple[Any, str], ...] = (
    (NAN, "data"),
    ({"a": [1, {"b": NAN}]}, "data.a[1].b"),
    ([INFINITY], "data[0]"),
    ({"x": -INFINITY}, "data.x"),
    ({"t": NUL}, "data.t"),
    ([0, SURROGATE], "data[1]"),
    ({NUL: 1}, "data"),
    ({5: 1}, "data"),
    ({"a": {None: 1}}, "data.a"),
    ({"s": {1}}, "data.s"),
    ({"b": b"x"}, "data.b"),
    ({"d": datetime(2030, 1, 1, tzinfo=UTC)}, "data.d"),
    ({"u": SOME_ID}, "data.u"),
    ({"a b": [object()]}, "data['a b'][0]"),
    ({"n": 10**5000}, "data.n"),
    ("x" * 300_000, "data"),
    ({"big": ["é" * 200_000]}, "data"),
)
