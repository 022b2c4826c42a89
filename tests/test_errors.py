"""Every error that is raised on purpose: one base, a stable code, a sentence and what to do."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable
from uuid import UUID

import pytest

from django_jobqueue import exceptions
from django_jobqueue.exceptions import (
    CannotWait,
    ClaimLost,
    DuplicateJob,
    ImmutableOption,
    InvalidData,
    InvalidOption,
    InvalidTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobQueueError,
    KeyRequired,
    LakeProblem,
    NotOrdered,
    QueueNotFound,
    ScheduleNotFound,
    SparkUnavailable,
    StreamClosed,
    UnsafeIsolation,
    WaitTimeout,
)

ID = UUID("0198c0de-0000-7000-8000-000000000001")
CODES = {
    QueueNotFound: "queue_not_found",
    JobNotFound: "job_not_found",
    ScheduleNotFound: "schedule_not_found",
    DuplicateJob: "duplicate_job",
    InvalidTransition: "invalid_transition",
    KeyRequired: "key_required",
    NotOrdered: "not_ordered",
    ImmutableOption: "immutable_option",
    InvalidOption: "invalid_option",
    InvalidData: "invalid_data",
    ClaimLost: "claim_lost",
    StreamClosed: "stream_closed",
    SparkUnavailable: "spark_unavailable",
    LakeProblem: "lake_problem",
    UnsafeIsolation: "unsafe_isolation",
    JobFailed: "job_failed",
    JobCancelled: "job_cancelled",
    WaitTimeout: "wait_timeout",
    CannotWait: "cannot_wait",
}
EXAMPLES: dict[str, Callable[[], JobQueueError]] = {
    "queue not found": lambda: QueueNotFound("wrok", ["work", "orders"]),
    "queue not found, nothing like it": lambda: QueueNotFound("wrok"),
    "schedule not found": lambda: ScheduleNotFound("nightly"),
    "job not found": lambda: JobNotFound(ID),
    "jobs not found": lambda: JobNotFound([ID] * 12),
    "duplicate": lambda: DuplicateJob("work", [f"a job with the id {ID} exists already"]),
    "transition": lambda: InvalidTransition(job_id=ID, state="active", wanted="deleted", allowed=["failed"]),
    "no key": lambda: KeyRequired("orders", [1, 2]),
    "not ordered": lambda: NotOrdered("work", "standard"),
    "immutable": lambda: ImmutableOption("work", "policy", "standard", "short"),
    "option": lambda: InvalidOption("limit", "expected an int, got 'x'", hint="Pass an int."),
    "data": lambda: InvalidData("data.a[2]", "NaN is not JSON", hint="Send None instead."),
    "claim lost": lambda: ClaimLost(job_id=ID, attempt=1, now=2),
    "no spark": lambda: SparkUnavailable("Java 17 is missing.", hint="Install it."),
    "lake": lambda: LakeProblem("A file is missing.", hint="Run it again."),
    "stream closed": lambda: StreamClosed("w1"),
    "failed": lambda: JobFailed(job_id=ID, state="failed", error="Traceback …", summary="ValueError: no"),
    "failed without a text": lambda: JobFailed(job_id=ID, state="expired", error="", summary=""),
    "cancelled": lambda: JobCancelled(job_id=ID, state="stopped", note="refunded"),
    "timeout": lambda: WaitTimeout(job_id=ID, seconds=2.5),
    "cannot wait": lambda: CannotWait(job_id=ID, problem="it was sent in this transaction"),
    "isolation": lambda: UnsafeIsolation("serializable"),
}


def public_errors() -> dict[str, type[JobQueueError]]:
    own = {
        name: kind for name, kind in vars(exceptions).items() if getattr(kind, "__module__", "") == exceptions.__name__
    }
    return {
        name: kind
        for name, kind in own.items()
        if isinstance(kind, type) and issubclass(kind, JobQueueError) and kind is not JobQueueError
    }


def test_every_error_is_ours_and_has_a_code_that_never_changes():  # G16
    assert {kind: kind.code for kind in public_errors().values()} == CODES
    assert all(issubclass(kind, JobQueueError) for kind in CODES)
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.parametrize("name", sorted(public_errors()))
def test_every_error_says_in_one_sentence_what_it_is(name):
    text = inspect.getdoc(public_errors()[name])

    assert text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_error_has_a_cause_and_a_hint(example):  # G16
    error = EXAMPLES[example]()

    assert error.message.rstrip("?").endswith((".", "'work'"))
    assert error.hint[:1].isupper()
    assert error.hint.endswith(".")
    assert str(error) == f"{error.message} {error.hint}"
    assert not re.search(r"\bNone\b|  ", error.message)


def test_every_error_has_an_example():
    assert {type(make()) for make in EXAMPLES.values()} == set(CODES)


@pytest.mark.parametrize(
    ("example", "facts"),
    (
        ("queue not found", {"name": "wrok"}),
        ("job not found", {"job_ids": [ID]}),
        ("duplicate", {"queue": "work"}),
        ("transition", {"job_id": ID, "state": "active", "wanted": "deleted", "allowed": ["failed"]}),
        ("no key", {"queue": "orders", "places": [1, 2]}),
        ("not ordered", {"queue": "work", "policy": "standard"}),
        ("immutable", {"queue": "work", "option": "policy", "old": "standard", "new": "short"}),
        ("option", {"option": "limit", "problem": "expected an int, got 'x'"}),
        ("data", {"path": "data.a[2]", "problem": "NaN is not JSON"}),
        ("claim lost", {"job_id": ID, "attempt": 1, "now": 2}),
        ("isolation", {"level": "serializable"}),
    ),
)
def test_errors_carry_their_facts(example, facts):
    error = EXAMPLES[example]()

    assert {name: getattr(error, name) for name in facts} == facts


def test_a_missing_key_begins_with_the_words_of_the_specification():  # R021 B2
    assert str(KeyRequired("orders")).startswith("FIFO queues require a singleton_key")


def test_a_claim_that_was_lost_says_who_has_it_now():
    assert "Its current attempt is 2." in str(ClaimLost(job_id=ID, attempt=1, now=2))
    assert "current attempt" not in str(ClaimLost(job_id=ID, attempt=1, now=1))


def test_many_missing_jobs_are_not_all_listed():
    assert str(JobNotFound([ID] * 1_000)).count(str(ID)) == 10
    assert "and 990 more" in str(JobNotFound([ID] * 1_000))


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_error_travels_between_processes(example):
    error = EXAMPLES[example]()

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)
