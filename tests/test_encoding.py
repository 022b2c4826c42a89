from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections import OrderedDict, UserDict, defaultdict
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Group
from django.core.serializers.json import DjangoJSONEncoder
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import example, given
from hypothesis import strategies as st

from django_jobqueue.encoding import decode, encode
from django_jobqueue.exceptions import InvalidData
from tests.json_values import (
    Colour,
    OldColour,
    Plain,
    Point,
    Size,
    anything,
    as_jsonb_keeps_it,
    good,
    in_one_transaction,
    nested,
    same,
    stored,
)

LIMITS: Any = {"max_bytes": 262_144, "max_depth": 100}


def refused(data, **limits):
    with pytest.raises(InvalidData) as caught:
        encode(data, **(LIMITS | limits))
    return caught.value


# encode: what is accepted comes back


@given(good)
def test_encoded_data_decodes_to_the_same(data):  # F53
    assert decode(encode(data, **LIMITS)) == data


@pytest.mark.django_db
@in_one_transaction
@given(good)
@example([1e300, 1e16, 1e23, -0.0, 5e-324, 2.0, 1.7976931348623157e308])
@example([2**53 + 1, -(2**63), 2**64, 10**4299, 0.1 + 0.2])
@example({"": "", "\\u0000": "\\u0000", "😀": "\u202eRTL\u202c", "a\nb": '"\\/\b\f\x7f\x01'})
def test_postgresql_accepts_what_encode_accepts_and_gives_it_back(data):  # F53
    kept = stored(encode(data, **LIMITS))

    assert same(as_jsonb_keeps_it(data), kept)


@pytest.mark.django_db
@in_one_transaction
@given(anything)
def test_data_is_either_refused_before_sql_or_accepted_by_postgresql(data):
    try:
        text = encode(data, **LIMITS)
    except InvalidData:
        return
    stored(text)


@pytest.mark.django_db
def test_jsonb_makes_an_int_of_a_large_float_and_loses_the_sign_of_zero():  # F53
    assert stored(encode(1e300, **LIMITS)) == 10**300
    assert math.copysign(1, stored(encode(-0.0, **LIMITS))) == 1


def test_a_refusal_leaves_the_transaction_usable(db):
    refused({"a": "\0"})

    assert stored("1") == 1


def test_text_is_compact_and_not_escaped():
    assert encode({"a": [1, "é"], "b": None}, **LIMITS) == '{"a":[1,"é"],"b":null}'


@pytest.mark.parametrize(
    ("data", "text"),
    (
        (None, "null"),
        ((1, (2,)), "[1,[2]]"),
        (Point(1, 2), "[1,2]"),
        ({"a": Colour.RED, Colour.RED: 1}, '{"a":"red","red":1}'),
        (OldColour.BLUE, '"blue"'),
        ([Size.BIG], "[3]"),
        (mark_safe("<b>"), '"<b>"'),
        (defaultdict(list, a=[1]), '{"a":[1]}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (type("Weight", (float,), {})(1.5), "1.5"),
        (type("Rows", (list,), {})([1]), "[1]"),
        ("\\u0000", '"\\\\u0000"'),
        ("x\u2028\ufffe\U0010ffff", '"x\u2028\ufffe\U0010ffff"'),
    ),
)
def test_kinds_of_json_types_are_encoded_as_what_they_are(data, text):
    assert encode(data, **LIMITS) == text


# encode: what is refused, and where


@pytest.mark.parametrize(
    ("data", "path", "problem"),
    (
        ({"a": [0, 1, math.nan]}, "data.a[2]", "NaN is not JSON"),
        ([math.inf], "data[0]", "Infinity is not JSON"),
        (-math.inf, "data", "-Infinity is not JSON"),
        (
            {"a": {"b": "x\0y"}},
            "data.a.b",
            r"the text 'x\x00y' contains NUL ('\x00') at character 1",
        ),
        ({"a\0": 1}, "data", r"the key 'a\x00' contains NUL ('\x00') at character 1"),
        (
            ["\ud800"],
            "data[0]",
            r"the text '\ud800' contains a lone surrogate ('\ud800') at character 0",
        ),
        (
            {"k": {"\udfff": 1}},
            "data.k",
            r"the key '\udfff' contains a lone surrogate ('\udfff') at character 0",
        ),
        ({"a": {1: 2}}, "data.a", "the key 1 (int) is not text"),
        ({None: 2}, "data", "the key None (NoneType) is not text"),
        ({True: 2}, "data", "the key True (bool) is not text"),
        ({(1, 2): 2}, "data", "the key a value of type tuple is not text"),
        ({10**5000: 2}, "data", "the key unprintable int (int) is not text"),
        ({"n": 10**4300}, "data.n", "an int of 14,285 bits is too long"),
        ({"my key": {"x-y": {1}}}, "data['my key']['x-y']", "a value of type set is not JSON"),
        ((1, [object()]), "data[1][0]", "a value of type object is not JSON"),
    ),
)
def test_a_refusal_names_the_path_and_the_problem(data, path, problem):  # F49 F50
    error = refused(data)

    assert (error.path, error.problem) == (path, problem)
    assert str(error).startswith(f"{path}: {problem}.")
    assert error.hint


@dataclasses.dataclass
class Order:
    number: int


@pytest.mark.parametrize(
    ("value", "hint"),
    (
        (Group(pk=5), "Send its pk"),
        (SimpleLazyObject(lambda: Group(pk=5)), "Send its pk"),
        (Group.objects.none(), "Send a list of pks"),
        (datetime(2026, 1, 1, tzinfo=UTC), "isoformat"),
        (date(2026, 1, 1), "isoformat"),
        (clock_time(1, 2), "isoformat"),
        (timedelta(1), "total_seconds"),
        (Decimal("1.10"), "str(value)"),
        (UUID(int=1), "str(value)"),
        (gettext_lazy("job"), "str(value)"),
        (b"x", "base64"),
        (bytearray(b"x"), "base64"),
        ({1}, "sorted(value)"),
        (frozenset(), "sorted(value)"),
        (Plain.A, "value.value"),
        (UserDict(a=1), "dict(value)"),
        (iter([1]), "list(value)"),
        (Order(1), "dataclasses.asdict"),
        (object(), "JOBQUEUE['ENCODER']"),
        (1j, "JOBQUEUE['ENCODER']"),
        (Group, "JOBQUEUE['ENCODER']"),
    ),
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_json_is_refused_with_a_hint(value, hint):  # F50
    error = refused({"user": value})

    assert error.path == "data.user"
    assert hint in error.hint


def test_the_root_of_the_path_can_be_named():
    with pytest.raises(InvalidData, match=r"^items\[3\]\.data\.a: NaN"):
        encode({"a": math.nan}, root="items[3].data", **LIMITS)


def test_a_long_path_is_shortened():
    error = refused(nested(101))

    assert len(error.path) < 200
    assert error.path.startswith("data[0][0]")


def test_a_long_key_is_shortened():
    assert len(str(refused({"k" * 10_000: math.nan}))) < 200


# encode: depth, circles, size


def test_data_may_be_as_deep_as_allowed_and_no_deeper():
    assert encode(nested(100), **LIMITS)
    assert "nested more than 100 levels deep" in refused(nested(101)).problem
    assert encode(1, max_bytes=9, max_depth=0) == "1"
    assert "nested more than 0 levels" in refused([], max_depth=0).problem


def test_the_depth_is_the_same_with_and_without_a_closer_look():
    encoder = DjangoJSONEncoder

    def deep(leaf, depth):
        data = leaf
        for _ in range(depth):
            data = [data]
        return data

    assert encode(deep(date(2026, 1, 1), 100), encoder=encoder, **LIMITS)
    assert encode(deep(Size.BIG, 100), **LIMITS)
    refused(deep(Size.BIG, 101))


def test_circles_are_refused():
    circle: dict[str, object] = {"a": 1}
    circle["b"] = [circle]

    error = refused(circle)

    assert (error.path, error.problem) == ("data.b[0]", "is a circular reference")


def test_a_part_that_occurs_twice_is_no_circle():
    part = {"x": [1]}

    assert encode([part, part, Size.BIG], **LIMITS) == '[{"x":[1]},{"x":[1]},3]'


def test_data_may_be_as_large_as_allowed_and_no_larger():
    assert encode("x" * 98, max_bytes=100, max_depth=1)
    assert encode([1] * 49 + [22], max_bytes=102, max_depth=1)
    assert refused("x" * 99, max_bytes=100).problem == "is 101 bytes; the limit is 100"
    assert refused([1] * 50, max_bytes=100).problem == "is 101 bytes; the limit is 100"


def test_size_counts_bytes_not_characters():
    assert encode("é" * 49, max_bytes=100, max_depth=1)
    assert refused("é" * 50, max_bytes=100).problem == "is 102 bytes; the limit is 100"
    assert refused("\n" * 50, max_bytes=100).problem == "is 102 bytes; the limit is 100"


@given(good, st.integers(0, 300))
def test_data_is_refused_for_its_size_exactly_when_its_text_is_too_large(data, limit):
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) <= limit:
        assert encode(data, max_bytes=limit, max_depth=100) == text
    else:
        assert "bytes" in refused(data, max_bytes=limit).problem


@pytest.mark.parametrize(
    ("make", "problem"),
    (
        (lambda: "x" * 104_857_600, "is at least 104,857,602 bytes; the limit is 262,144"),
        (lambda: {"a": ["y" * 1_048_576] * 100}, "is at least 104,857,907 bytes"),
        (lambda: ["z" * 100] * 1_000_000, "is larger than 262,144 bytes"),
        (lambda: {str(n): n for n in range(1_000_000)}, "is larger than 262,144 bytes"),
        (lambda: {"a": {str(n): n for n in range(1_000_000)}}, "is larger than 262,144 bytes"),
        (lambda: nested(10_000), "is nested more than 100 levels deep"),
    ),
)
def test_far_too_much_is_refused_quickly(make, problem):  # F52
    data = make()

    before = time.process_time()
    error = refused(data)
    spent = time.process_time() - before

    assert error.problem.startswith(problem)
    assert spent < 0.1


def test_a_small_thing_that_would_become_endless_text_is_refused():
    data: object = "lol"
    for _ in range(90):
        data = [data] * 10

    assert refused(data).problem == "is larger than 262,144 bytes"


def test_data_deeper_than_the_stack_is_refused_too():
    limit = sys.getrecursionlimit()

    assert "nested" in refused([nested(limit * 2), Size.BIG], max_depth=limit * 3).problem


def test_a_raised_limit_of_digits_does_not_let_longer_ints_through():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert "too long" in refused([10**5000]).problem
        assert encode([10**4299], **LIMITS) == f"[{10**4299}]"
    finally:
        sys.set_int_max_str_digits(before)


# encode: a project's own encoder


def test_an_encoder_makes_json_of_other_objects():
    key = uuid4()
    data = {"at": datetime(2026, 1, 2, tzinfo=UTC), "id": key, "sum": [Decimal("1.10")]}

    text = encode(data, encoder=DjangoJSONEncoder, **LIMITS)

    assert decode(text) == {"at": "2026-01-02T00:00:00Z", "id": str(key), "sum": ["1.10"]}


def test_what_an_encoder_does_not_know_is_refused():
    with pytest.raises(InvalidData, match=r"data\.a: a value of type set is not JSON"):
        encode({"a": {1}}, encoder=DjangoJSONEncoder, **LIMITS)


@pytest.mark.parametrize(
    ("made", "problem"),
    (
        ({1: 2}, "the key 1"),
        (math.nan, "NaN"),
        ("\0", "NUL"),
        ("x" * 300_000, "bytes"),
        (nested(200), "levels deep"),
    ),
)
def test_what_an_encoder_makes_is_held_to_the_same_rules(made, problem):
    class Encoder(json.JSONEncoder):
        def default(self, o):
            return made

    with pytest.raises(InvalidData, match=problem):
        encode({"a": object()}, encoder=Encoder, **LIMITS)


def test_an_encoder_that_never_ends_is_refused():
    class Same(json.JSONEncoder):
        def default(self, o):
            return o

    class Endless(json.JSONEncoder):
        def default(self, o):
            return object()

    for encoder in (Same, Endless):
        with pytest.raises(InvalidData):
            encode(object(), encoder=encoder, **LIMITS)


# decode


def test_no_text_is_no_data():
    assert decode(None) is None
    assert decode("null") is None
