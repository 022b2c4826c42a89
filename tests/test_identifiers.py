from __future__ import annotations

import os
import random
import time
from uuid import UUID, uuid4

import pytest

from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.identifiers import as_uuid, uuid7


def test_a_new_id_is_a_version_7_uuid_of_this_millisecond():
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000

    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before <= made.int >> 80 <= after


def test_ids_differ_even_when_made_at_once():
    assert len({uuid7() for _ in range(20_000)}) == 20_000


def test_ids_rise_from_one_millisecond_to_the_next():
    ids = [uuid7() for _ in range(20_000)]
    milliseconds = [made.int >> 80 for made in ids]

    assert milliseconds == sorted(milliseconds)


def test_seeding_the_random_module_does_not_repeat_ids():
    random.seed(1)
    first = uuid7().int & (1 << 62) - 1
    random.seed(1)

    assert uuid7().int & (1 << 62) - 1 != first


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork beside threads, from Python 3.12
def test_a_forked_child_makes_other_ids():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        os.write(writer, (uuid7().int & (1 << 62) - 1).to_bytes(8, "big"))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = int.from_bytes(os.read(reader, 8), "big")
    os.close(reader)
    os.close(writer)

    assert uuid7().int & (1 << 62) - 1 != theirs


def test_a_uuid_and_its_text_are_accepted():
    made = uuid4()

    assert as_uuid(made) is made
    assert as_uuid(str(made)) == as_uuid(made.hex) == as_uuid(str(made).upper()) == made


@pytest.mark.parametrize(
    "value",
    (
        "",
        None,
        0,
        5,
        True,
        b"0" * 16,
        "x",
        "1" * 31,
        "\u0661" * 32,
        "1_" * 16,
        f" {UUID(int=1)}",
        [],
        type,
    ),
    ids=ascii,
)
def test_anything_else_is_no_id(value):
    with pytest.raises(InvalidOption, match="job_id: expected a UUID"):
        as_uuid(value, option="job_id")
