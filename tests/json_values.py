"""Values for the tests of JSON, outputs and texts: good, arbitrary and awkward ones."""

from __future__ import annotations

from collections import namedtuple
from enum import Enum, IntEnum, StrEnum

from django.db import connection
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from django_jobqueue.encoding import decode


def nested(depth):
    data: list[object] = []
    for _ in range(depth - 1):
        data = [data]
    return data


def stored(text):
    """What PostgreSQL gives back for a JSON text."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT (%s::jsonb)::text", [text])
        return decode(cursor.fetchone()[0])


def as_jsonb_keeps_it(data):
    """The documented rewrites: a float without a fraction may come back as an int, -0.0 as 0.0."""
    if isinstance(data, float):
        return abs(data) if data == 0 else data
    if isinstance(data, dict):
        return {key: as_jsonb_keeps_it(value) for key, value in data.items()}
    return [as_jsonb_keeps_it(value) for value in data] if isinstance(data, list) else data


def same(one, other):
    if isinstance(one, float) or isinstance(other, float):
        return float(one) == float(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other and type(one) is type(other)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
good = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=30)
anything = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters()) | st.integers() | st.none(), inner)
        | st.tuples(inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=30,
)
in_one_transaction = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Plain(Enum):
    A = "a"


class OldColour(str, Enum):  # noqa: UP042 - projects have them still
    BLUE = "blue"


Point = namedtuple("Point", "x y")


class Unprintable:
    def __str__(self):
        raise ValueError("no")

    __repr__ = __str__


class OnlyRepr:
    def __str__(self):
        raise ValueError("no")

    def __repr__(self):
        return "<only repr>"


class WrongStr:
    def __str__(self):
        return 5


class BadDict(dict):  # type: ignore[type-arg]
    def items(self):
        raise RuntimeError("no")
