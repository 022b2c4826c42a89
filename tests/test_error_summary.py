"""The reason of a failure in one line."""

from __future__ import annotations

import traceback

import pytest
from django.db import IntegrityError, transaction

from django_jobqueue.error_summary import MAX_CHARS, summary_of, summary_of_text
from tests.factories import QueueFactory


class ShopError(Exception):
    pass


class Rude(ShopError):
    def __str__(self):
        raise RuntimeError


class Ruder(Rude):
    def __repr__(self):
        raise RuntimeError


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def traceback_of(error):
    return "".join(traceback.format_exception(raised(error)))


PYDANTIC = """1 validation error for Order
total
  Field required [type=missing, input_value={}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.11/v/missing"""


def syntax_error():
    try:
        compile("total = = 3", "orders.py", "exec")
    except SyntaxError as error:
        return error


def endless():
    def there():
        here()

    def here():
        there()

    try:
        here()
    except RecursionError as error:
        return error


@pytest.mark.parametrize(
    ("error", "summary"),
    (
        (ShopError("the card has expired"), "ShopError: the card has expired"),
        (ShopError("\n\n  the card has expired\nDETAIL: ada"), "ShopError: the card has expired"),
        (ShopError("pdftk failed:\n\n  out of memory\nand more"), "ShopError: pdftk failed: out of memory"),
        (ShopError(PYDANTIC), "ShopError: 1 validation error for Order"),
        (ShopError(), "ShopError"),
        (ShopError("\n \n"), "ShopError"),
        (KeyError("city"), "KeyError: 'city'"),
        (raised(ShopError("no"), KeyError("city")), "ShopError: no"),
        (raised(ShopError(), KeyError("city")), "ShopError, caused by KeyError: 'city'"),
        (Rude("a", 3), "Rude: Rude('a', 3)"),
        (Ruder(), "Ruder: unprintable Ruder"),
        (ShopError("a\0b\x1b[31m\udc80"), "ShopError: a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m\ufffd"),
        (syntax_error(), "SyntaxError: invalid syntax (orders.py, line 1)"),
        (endless(), "RecursionError: maximum recursion depth exceeded"),
        ("the printer is on fire\nand more", "the printer is on fire"),
        ("\n\n  the printer is on fire", "the printer is on fire"),
        ("", ""),
        (5, "5"),
    ),
)
def test_the_summary_of_an_error(error, summary):
    assert summary_of(error) == summary


def test_the_summary_of_a_group_names_its_members():
    inner = ExceptionGroup("inner", [ValueError("bad"), ValueError("bad"), ShopError("no\nmore")])

    assert summary_of(ExceptionGroup("could not ship", [KeyError("city"), inner])) == (
        "ExceptionGroup: could not ship [ValueError: bad (2 times); KeyError: 'city'; ShopError: no]"
    )
    assert summary_of(ExceptionGroup("", [ShopError()])) == "ExceptionGroup: [ShopError]"
    assert summary_of(ExceptionGroup("all", [ShopError(name) for name in "abcde"])).endswith(
        "ShopError: c; and 2 more]"
    )


def test_the_summary_of_a_large_group_is_bounded():
    group: ExceptionGroup[Exception] = ExceptionGroup("all", [ShopError("x" * 10_000) for _ in range(5_000)])
    for _ in range(2_000):
        group = ExceptionGroup("deeper", [group])

    assert summary_of(group) == "ExceptionGroup: deeper []"
    assert len(summary_of(group.exceptions[0])) <= MAX_CHARS


def test_a_long_message_is_cut():
    assert summary_of(ShopError("x" * 10_000)) == f"ShopError: {'x' * (MAX_CHARS - 12)}…"


@pytest.mark.parametrize(
    ("error", "summary"),
    (
        (ShopError("the card has expired\nDETAIL: ada"), "ShopError: the card has expired"),
        (ShopError(), "ShopError"),
        (raised(ShopError("no"), raised(KeyError("city"))), "ShopError: no"),
        (syntax_error(), "SyntaxError: invalid syntax"),
        (endless(), "RecursionError: maximum recursion depth exceeded"),
        (
            ExceptionGroup("could not ship", [raised(KeyError("city"))]),
            "ExceptionGroup: could not ship (1 sub-exception)",
        ),
    ),
)
def test_the_summary_of_a_traceback_is_the_line_that_names_the_exception(error, summary):
    text = traceback_of(error)

    assert summary_of_text(text) == summary
    assert summary_of_text(f"the printer said:\n{text}") == summary


def test_a_text_that_only_begins_like_a_traceback_keeps_its_first_line():
    assert summary_of_text("Traceback (most recent call last):") == "Traceback (most recent call last):"


@pytest.mark.django_db
def test_the_summary_of_an_error_of_the_database_has_no_values_of_the_row():
    queue = QueueFactory()

    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        QueueFactory._meta.model.objects.bulk_create([queue])

    assert "DETAIL" in str(caught.value)
    assert summary_of(caught.value) == (
        'IntegrityError: duplicate key value violates unique constraint "jobqueue_queue_pkey"'
    )
