"""Sensitive values are hidden wherever they are displayed, and each secret stays with its owner when data is edited."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobqueue.redaction import HIDDEN, HiddenValueMoved, editable, redacted, redacted_text, restored

USERS = {"users": [{"name": "ada", "password": "a-secret"}, {"name": "ben", "password": "b-secret"}]}


def edit(original, change):
    """What is stored after an operator has applied this change to what the form shows."""
    shown = editable(original, salt="job")
    assert "secret" not in json.dumps(shown)
    return restored(change(copy.deepcopy(shown)), original, salt="job")


@pytest.mark.parametrize(
    "value",
    (
        {"Password": "secret"},
        {"X-Api-Key": "secret", "apiKey": ["secret"], "private_key": {"pem": "secret"}},
        {"pwd": "secret", "db_passwd": "secret", "passphrase": "secret", "Set-Cookie": "secret"},
        {"url": "postgres://ada:secret@db:5432/shop?sslmode=require"},
        {"url": "https://example.com/hook?user=ada&access_token=secret#top"},
        {"headers": [["Authorization", "secret"], ["Accept", "text/html"]]},
        {"headers": [{"name": "Cookie", "value": "secret"}, {"key": "x-token", "value": "secret"}]},
        {"raw": "Accept: text/html\nAuthorization: Bearer secret\n"},
        {"body": '{"user": "ada", "password": "secret"}'},
        [[["token", "secret"]]],
        {"pins": [["password", 12345]], "s": "secret=1"},
        {"url": "https://ada:p@secret@db/shop and https://secret-token-0123456789@sentry.example.com/1"},
        {"note": "sent Bearer secret0123456789 to it"},
        {"nested": {"deep": [{"list": [{"Proxy-Authorization": ["secret"]}, {"csrf_token": {"a": "secret"}}]}]}},
    ),
)
def test_sensitive_values_are_hidden(value):
    shown = json.dumps(redacted(value))

    assert "secret" not in shown.replace("secret=", "")
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "value",
    (
        {"name": "ada", "n": 1, "nothing": None, "list": [1, "two", ["three", "four"]]},
        "Unexpected token: } at line 3",
        "https://example.com/a?b=c",
        "mailto:ada@example.com",
        "https://example.com/@ada/post and https://example.com:8000/a@b",
        "Bearer token is missing; Basic authentication failed",
    ),
)
def test_other_values_are_shown_as_they_are(value):
    assert redacted(value) == value


def test_positional_arguments_of_a_task_are_hidden_by_their_names():
    data = {"args": ["ada", "secret", "more"], "kwargs": {"token": "secret"}}

    assert redacted(data, arguments=("user", "password")) == {
        "args": ["ada", HIDDEN, "more"],
        "kwargs": {"token": HIDDEN},
    }


@pytest.mark.parametrize(
    "error",
    (
        "OperationalError: connection to postgres://ada:secret@db/shop failed",
        "ValueError: login(user='ada', password='secret') was refused",
        "HTTPError: GET https://example.com/?api_key=secret&page=2",
        "{'Authorization': 'Bearer secret'}",
        'body was "{\\"token\\": \\"secret\\"}"',
        "Authorization: Bearer secret",
        "ValueError: login(password='secret') was refused",
        "KeyError: password='secret'",
        "requests.HTTPError: Authorization: Bearer secret",
        'RequestError: {"user": "ada", "password": "secret"}',
        "Error: a=1 b: token=secret",
    ),
)
def test_errors_are_shown_without_secrets(error):
    shown = redacted_text(error)

    assert "secret" not in shown
    assert HIDDEN in shown
    assert shown[:4] == error[:4]


def test_the_source_lines_of_a_traceback_are_kept():
    error = (
        'Traceback (most recent call last):\n  File "shop.py", line 7, in charge\n'
        "    token = token_of(user, password=given)\n"
        "KeyError: token=secret"
    )

    assert redacted_text(error) == error.replace("secret", HIDDEN)


def test_a_secret_stays_with_its_owner_when_an_item_is_deleted():  # F88
    result = edit(USERS, lambda shown: {"users": shown["users"][1:]})

    assert result == {"users": [{"name": "ben", "password": "b-secret"}]}


def test_a_secret_stays_with_its_owner_when_items_are_sorted_and_added():  # F88
    result = edit(USERS, lambda shown: {"users": [shown["users"][1], {"name": "eve"}, shown["users"][0]]})

    assert result == {"users": [USERS["users"][1], {"name": "eve"}, USERS["users"][0]]}


def test_secrets_inside_of_texts_are_restored():
    original = {"url": "postgres://ada:secret@db/shop", "log": "password=secret, n=1"}

    result = edit(original, lambda shown: {**shown, "url": shown["url"].replace("/shop", "/books")})

    assert result == {"url": "postgres://ada:secret@db/books", "log": "password=secret, n=1"}


@pytest.mark.parametrize(
    "change",
    (
        lambda shown: {"users": [{"name": "ben", "password": HIDDEN}]},
        lambda shown: {"note": shown["users"][0]["password"]},
        lambda shown: {"note": f"see {shown['users'][0]['password']}", "password": "new"},
        lambda shown: {"users": [shown["users"][0], shown["users"][0]]},
        lambda shown: {"password": f"{HIDDEN}-0123456789ab"},
    ),
    ids=("without its mark", "shown elsewhere", "inside of a text", "twice", "of another job"),
)
def test_an_edit_that_would_move_a_secret_is_refused(change):  # F88
    with pytest.raises(HiddenValueMoved):
        edit(USERS, change)


def test_plain_asterisks_keep_the_value_of_their_key_outside_of_lists():
    original = {"user": {"password": "secret", "name": "ada"}, "stars": "******** of 10"}

    result = restored({"user": {"password": HIDDEN, "name": "eve"}, "stars": "******** of 10"}, original, salt="job")

    assert result == {"user": {"password": "secret", "name": "eve"}, "stars": "******** of 10"}


def test_a_mark_says_nothing_about_equal_secrets():
    shown = editable({"a": {"password": "same"}, "b": {"password": "same"}}, salt="job")

    assert shown["a"]["password"] != shown["b"]["password"]
    assert shown != editable({"a": {"password": "same"}, "b": {"password": "same"}}, salt="another job")


names = st.sampled_from(["name", "password", "token", "url", "args", "value", "key"])
texts = st.sampled_from(["x", "password=abc; n=1", "https://a:b@c/d?token=e&f=g", "", HIDDEN, "Cookie: a=b"])
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=15,
)


@given(documents)
def test_what_is_not_edited_is_restored_exactly(original):
    assert restored(editable(original, salt="job"), original, salt="job") == original
