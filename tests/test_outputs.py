from __future__ import annotations

import json
import math
from collections import defaultdict
from datetime import date
from decimal import Decimal

import pytest
from django.utils.functional import SimpleLazyObject
from hypothesis import given
from hypothesis import strategies as st

from django_jobqueue.encoding import decode
from django_jobqueue.outputs import clean_output
from tests.json_values import (
    BadDict,
    Colour,
    OnlyRepr,
    Size,
    Unprintable,
    WrongStr,
    anything,
    good,
    in_one_transaction,
    nested,
    stored,
)


def cleaned(value, max_bytes=262_144):
    text, changed = clean_output(value, max_bytes=max_bytes)
    return decode(text), changed


def test_no_output_is_no_text():
    assert clean_output(None, max_bytes=100) == (None, False)


@given(good)
def test_good_output_is_kept(output):
    text, changed = clean_output(output, max_bytes=262_144)

    assert decode(text) == output
    assert not changed


@pytest.mark.parametrize(
    ("output", "kept"),
    (
        ("a\0b", "a�b"),
        ({"k\0": ["\ud800x"]}, {"k�": ["�x"]}),
        ([math.nan, math.inf, -math.inf], ["NaN", "Infinity", "-Infinity"]),
        ({1: 2, None: 3}, {"1": 2, "None": 3}),
        (date(2026, 1, 2), "2026-01-02"),
        ({"e": ValueError("boom")}, {"e": "boom"}),
        (Decimal("1.10"), "1.10"),
        ([Unprintable(), OnlyRepr()], ["unprintable Unprintable", "<only repr>"]),
        ([10**5000], ["an int of 16,610 bits"]),
        (SimpleLazyObject(lambda: "lazy"), "lazy"),
    ),
)
def test_output_that_json_cannot_hold_is_cleaned(output, kept):  # F51
    assert cleaned(output) == (kept, True)


@pytest.mark.parametrize("output", ((1, 2), Size.BIG, Colour.RED, defaultdict(int, a=1)), ids=repr)
def test_kinds_of_json_types_are_kept_as_what_they_are(output):
    kept, changed = cleaned(output)

    assert kept == (list(output) if isinstance(output, tuple) else output)
    assert not changed


def test_a_circle_in_an_output_is_cut():
    circle: list[object] = [1]
    circle.append(circle)

    assert cleaned(circle) == ([1, "circular reference"], True)


def test_an_output_too_deep_is_cut_where_it_is():
    kept, changed = cleaned(nested(10_000))

    assert changed
    assert "more than 100 levels deep" in json.dumps(kept)


@pytest.mark.parametrize(
    ("output", "size"),
    (
        ("x" * 300_000, 300_002),
        ({"a": "é" * 200_000}, 400_008),
        (["y" * 1000] * 300, 300_901),
        ("\n" * 200_000, 400_002),
        (["\0" * 300_000], 300_004),  # at least: the rest is not looked at
    ),
)
def test_an_output_too_large_is_replaced_by_its_start(output, size):
    kept, changed = cleaned(output)

    assert changed
    assert kept["truncated"] is True
    assert kept["bytes"] == size
    assert len(kept["start"]) == 1000


@given(anything | st.text(min_size=150), st.integers(200, 400))
def test_a_cleaned_output_is_never_larger_than_allowed(output, limit):
    text, _ = clean_output(output, max_bytes=limit)

    assert text is None or len(text.encode()) <= limit


@pytest.mark.django_db
@in_one_transaction
@given(anything)
def test_postgresql_accepts_every_cleaned_output(output):
    text, _ = clean_output(output, max_bytes=1000)

    if text is not None:
        stored(text)


@pytest.mark.parametrize(
    "output", (Unprintable(), WrongStr(), BadDict(a=1), [BadDict(a=1)], {"a": {"b": BadDict(c=1)}})
)
def test_cleaning_never_raises(output):
    kept, changed = cleaned(output)

    assert changed
    assert "unprintable" in json.dumps(kept) or "WrongStr" in json.dumps(kept)
