"""Data is refused before any SQL, with its path; outputs and errors are cleaned and never refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidData
from django_jobqueue.models import Job
from django_jobqueue.states import JobState

from .bad_values import DATA, INFINITY, NAN, NUL, SURROGATE
from .lives import claimed, job_in, now, refused, sent, shown

REPLACED = "\N{REPLACEMENT CHARACTER}"


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class UnprintableError(Exception):
    __str__ = __repr__ = Unprintable.__str__


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep(levels: int) -> Any:
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return made


SENDING: dict[str, Callable[[Any], object]] = {
    "send": lambda data: services.send("work", data),
    "asend": lambda data: async_to_sync(services.asend)("work", data),
    "send_many": lambda data: services.send_many("work", [{"data": 1}, {"data": data}]),
    "asend_many": lambda data: async_to_sync(services.asend_many)("work", [{"data": 1}, {"data": data}]),
    "retry": lambda data: services.retry(Job.objects.dead().get().pk, data=data),
    "retry many": lambda data: services.retry(Job.objects.dead(), data=data),
}


@pytest.mark.parametrize("verb", SENDING)
def test_data_that_is_no_json_is_refused_with_its_path(queue, verb):  # R153 R191 R201 R315 I10
    job_in(JobState.FAILED, queue)

    for data, path in DATA:
        with refused(InvalidData) as caught:
            SENDING[verb](data)
        text = str(caught.value)
        assert f"{path}:" in text, (shown(data), text)
        assert "many" not in verb or "retry" in verb or f"items[1]: {path}:" in text
        assert len(text) < 700


@pytest.mark.parametrize("verb", SENDING)
def test_data_without_an_end_is_refused(queue, verb):  # R315
    job_in(JobState.FAILED, queue)

    for data in (circle(), {"a": {"b": circle()}}, deep(101), deep(100_000), {"o": Unprintable()}):
        with refused(InvalidData):
            SENDING[verb](data)


def test_data_may_be_as_deep_and_as_large_as_the_limits_say(queue, settings):
    settings.JOBQUEUE = {"MAX_DATA_BYTES": 100, "MAX_DEPTH": 3}

    assert sent(queue, "x" * 98).data == "x" * 98
    assert sent(queue, deep(3)).data == deep(3)
    for data in ("x" * 99, deep(4), "é" * 50):
        with refused(InvalidData):
            services.send(queue.name, data)


def test_after_refused_data_the_same_transaction_sends_good_data(queue):  # R191 I10
    with transaction.atomic():
        for data, _ in DATA:
            with pytest.raises(InvalidData):
                services.send(queue.name, data)
        sent(queue, {"good": True})

    assert Job.objects.get().data == {"good": True}


# --------------------------------------------------------------------------------------------- outputs and errors

OUTPUTS: dict[str, tuple[Any, Any]] = {
    "nul": ({"a": "x\0y"}, {"a": f"x{REPLACED}y"}),
    "surrogate": (["\ud800"], [REPLACED]),
    "nan": ([NAN, INFINITY, -INFINITY], ["NaN", "Infinity", "-Infinity"]),
    "keys": ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
    "nul in a key": ({"a\0": 1}, {f"a{REPLACED}": 1}),
    "set": ({1}, "{1}"),
    "unprintable": ({"o": Unprintable()}, {"o": "unprintable Unprintable"}),
    "circle": ([circle()], [["circular reference"]]),
    "bytes": (b"x", "b'x'"),
    "nothing": (None, None),
    "false": (False, False),
}
FINISHING: dict[str, Callable[[Job, Any], object]] = {
    "complete": services.complete,
    "complete by id": lambda job, output: services.complete(job.pk, output),
    "finish_many": lambda job, output: services.finish_many([(job, output)]),
}


@pytest.mark.parametrize("policy", ("queue", "fifo_queue"))
@pytest.mark.parametrize("verb", FINISHING)
@pytest.mark.parametrize("kind", OUTPUTS)
def test_an_output_that_is_no_json_is_cleaned(kind, verb, policy, request):  # R159 R238
    output, stored = OUTPUTS[kind]
    job = claimed(request.getfixturevalue(policy))

    FINISHING[verb](job, output)

    assert (now(job).state, now(job).output) == ("completed", stored)


@pytest.mark.parametrize("verb", FINISHING)
def test_an_output_of_ten_megabytes_is_cut(queue, verb):  # R238
    for output in ("x" * 10_000_000, {"rows": [{"n": n} for n in range(700_000)]}, ["é\0" * 3_000_000]):
        job = claimed(queue)

        FINISHING[verb](job, output)

        stored: Any = now(job).output
        assert (now(job).state, stored["truncated"]) == ("completed", True)
        assert len(str(stored)) < 262_144


def test_an_output_that_is_nested_too_deeply_is_cut(queue):  # R238
    job = claimed(queue)

    services.complete(job, deep(100_000))

    assert now(job).state == "completed"
    assert "truncated" in str(now(job).output)


ERRORS: dict[str, tuple[Any, str]] = {
    "nul": (NUL, f"nul {REPLACED}"),
    "surrogate": (SURROGATE, f"lone {REPLACED}"),
    "an exception": (ValueError("no such user"), "ValueError: no such user"),
    "an unprintable exception": (UnprintableError("x"), "unprintable UnprintableError"),
    "an unprintable object": (Unprintable(), "unprintable Unprintable"),
    "an exception without a text": (ValueError(), "ValueError"),
    "an exception with spaces": (KeyError(" "), "' '"),
    "an exception that says nothing": (RuntimeError("  \n"), "RuntimeError"),
    "a number": (5, "5"),
}
FAILING: dict[str, Callable[[Job, Any], object]] = {
    "fail": services.fail,
    "fail for good": lambda job, error: services.fail(job.pk, error, for_good=True),
    "finish_many": lambda job, error: services.finish_many([], [(job, error)]),
}


@pytest.mark.parametrize("verb", FAILING)
@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_can_be_recorded(queue, kind, verb):  # R158 R249
    error, stored = ERRORS[kind]
    job = claimed(queue)

    FAILING[verb](job, error)

    found = now(job)
    assert found.state == ("failed" if verb == "fail for good" else "retry")
    assert stored in found.error
    assert stored in found.attempts[-1]["error"]


@pytest.mark.parametrize("verb", FAILING)
def test_a_long_error_is_cut_and_says_so(queue, verb):  # R158 R249
    job = claimed(queue)

    FAILING[verb](job, "é\0" * 5_000_000)

    error = now(job).error
    assert 19_990 < len(error) <= 20_000
    assert re.search(r" … \(9,98\d,\d{3} characters left out\) … ", error)


@pytest.mark.parametrize(
    "verb",
    (
        services.stop,
        services.mark_unknown_stopped,
        services.give_back,
        lambda job, text: services.skip(job_in(JobState.FAILED, job.queue_id).pk, reason=text),
    ),
    ids=("stop", "mark_unknown_stopped", "give_back", "skip"),
)
def test_every_other_text_is_cleaned_too(queue, verb):  # R257 R263
    for text in (NUL, SURROGATE, "x" * 100_000):
        verb(claimed(queue), text)

    texts = [job.error + job.note for job in Job.objects.all()]
    assert len(texts) >= 3
    assert all("\0" not in text and len(text) <= 20_100 for text in texts)
