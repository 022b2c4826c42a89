from __future__ import annotations

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.text import check_queue_name, check_tags, check_text, clean_text
from tests.json_values import (
    Colour,
    OldColour,
    Unprintable,
    WrongStr,
    in_one_transaction,
)

# clean_text: error messages


@pytest.mark.parametrize(
    ("value", "text"),
    (
        ("plain", "plain"),
        ("a\0b\udc80", "a�b�"),
        (ValueError("boom"), "boom"),
        (5, "5"),
        (None, "None"),
        (Colour.RED, "red"),
        (OldColour.BLUE, "blue"),
        (Unprintable(), "unprintable Unprintable"),
        (WrongStr(), "unprintable WrongStr"),
    ),
)
def test_a_text_is_cleaned(value, text):  # F51
    assert clean_text(value, max_chars=100) == text


def test_an_exception_whose_message_raises_is_told_by_its_class():  # F16
    class Rude(ValueError):
        def __str__(self):
            raise RuntimeError

    assert clean_text(Rude(), max_chars=100) == "unprintable Rude"


def test_a_long_text_is_cut_in_the_middle_with_a_note():
    text = clean_text("head" + "x" * 5000 + "tail", max_chars=1000)

    assert len(text) in range(990, 1001)
    assert text.startswith("headx")
    assert text.endswith("xtail")
    left_out = 5008 - text.count("x") - 8
    assert f" … ({left_out:,} characters left out) … " in text
    assert "\n… (" in clean_text("line\n" * 1000, max_chars=1000)
    assert clean_text("x" * 1000, max_chars=1000) == "x" * 1000
    assert len(clean_text("x" * 5000, max_chars=5)) == 5


@pytest.mark.django_db
@in_one_transaction
@given(st.text(st.characters()))
def test_postgresql_accepts_every_cleaned_text(value):
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text", [clean_text(value, max_chars=50)])


# check_text, check_tags, check_queue_name


def test_a_text_is_given_back_as_plain_text():
    assert check_text("ключ 😀", option="key", max_length=10) == "ключ 😀"
    assert type(check_text(Colour.RED, option="key", max_length=10)) is str
    assert check_text(None, option="key", max_length=10) == ""
    assert check_text("", option="key", max_length=10) == ""


@pytest.mark.parametrize(
    ("value", "problem"),
    (
        (5, r"key: expected a string, got 5 \(int\)"),
        (b"x", "key: expected a string, got a value of type bytes"),
        ("x" * 11, "key: has 11 characters; the limit is 10"),
        ("a\0", "key: contains NUL"),
        ("\ud800", "key: contains a lone surrogate"),
    ),
)
def test_what_cannot_be_stored_as_text_is_refused(value, problem):
    with pytest.raises(InvalidOption, match=problem):
        check_text(value, option="key", max_length=10)


@pytest.mark.parametrize("value", ("", None))
def test_a_required_text_is_not_empty(value):
    with pytest.raises(InvalidOption, match="key: "):
        check_text(value, option="key", max_length=10, required=True)


@pytest.mark.django_db
@in_one_transaction
@given(st.text(st.characters()))
def test_a_text_is_refused_or_comes_back_byte_exact(value):  # F54
    try:
        checked = check_text(value, option="key", max_length=1000)
    except InvalidOption:
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text", [checked])
        assert cursor.fetchone()[0] == value


@pytest.mark.parametrize(
    ("tags", "kept"),
    (
        ((), []),
        (None, []),
        (["b", "a", "b"], ["b", "a"]),
        (("x",), ["x"]),
        ((tag for tag in "ab"), ["a", "b"]),
        ([Colour.RED], ["red"]),
        ([str(n) for n in range(50)] * 2, [str(n) for n in range(50)]),
    ),
)
def test_tags_keep_their_order_and_lose_their_doubles(tags, kept):
    assert check_tags(tags) == kept


@pytest.mark.parametrize(
    ("tags", "problem"),
    (
        ("urgent", r"Write tags=\['urgent'\]"),
        (b"urgent", "tags: expected a list of strings, got one string"),
        (5, "tags: expected a list of strings"),
        ({"a": 1}, "tags: expected a list of strings"),
        ([""], r"tags\[0\]: must not be empty"),
        (["a", None], r"tags\[1\]: expected a string"),
        (["a", 5], r"tags\[1\]: expected a string"),
        (["x" * 101], r"tags\[0\]: has 101 characters"),
        (["a\0"], r"tags\[0\]: contains NUL"),
        ([str(n) for n in range(51)], "tags: expected at most 50 tags"),
    ),
)
def test_what_are_not_tags_is_refused(tags, problem):
    with pytest.raises(InvalidOption, match=problem):
        check_tags(tags)


@pytest.mark.parametrize("name", ("a", "0", "mail", "a_b-c.d/e:f", "Z" * 100, Colour.RED))
def test_a_name_of_a_queue_is_letters_digits_and_a_few_signs(name):
    assert check_queue_name(name) == name
    assert type(check_queue_name(name)) is str


@pytest.mark.parametrize(
    ("name", "problem"),
    (
        ("a;b", "queue name: ';' is not allowed"),
        ("a b", "queue name: ' ' is not allowed"),
        ("'; DROP TABLE", 'queue name: "\'" is not allowed'),
        ("m\u0430il", r"queue name: '\\u0430' \(CYRILLIC SMALL LETTER A\) is not allowed"),
        ("a\n", r"queue name: '\\n' \(unnamed\) is not allowed"),
        ("é", "queue name: .*LATIN SMALL LETTER E WITH ACUTE"),
        ("-a", "queue name: '-' is not allowed at the start"),
        (":", "queue name: ':' is not allowed at the start"),
        ("", "queue name: must not be empty"),
        ("x" * 101, "queue name: has 101 characters; the limit is 100"),
        ("x" * 10_000, "queue name: has 10,000 characters"),
        (None, "queue name: expected a string"),
        (5, "queue name: expected a string"),
        ("a\0", "queue name: contains NUL"),
    ),
)
def test_any_other_name_of_a_queue_is_refused_with_the_reason(name, problem):  # F54
    with pytest.raises(InvalidOption, match=problem):
        check_queue_name(name)
