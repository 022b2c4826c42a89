"""What each exception of a handler means for its job, and after which endings the next job of a group may begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.utils import timezone

from django_jobqueue.handlers import CancelJob, FailForGood, Handler, JobExpired, RetryLater, Snooze
from django_jobqueue.models import Job
from django_jobqueue.options import YEAR
from django_jobqueue.states import FailureReason
from django_jobqueue.worker.outcomes import (
    Completed,
    Ending,
    Failed,
    Late,
    NotBegun,
    Recorded,
    Snoozed,
    Stopped,
    continues_group,
    ending_for_error,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEVER, LATER, AGAIN = KeyError("never"), OSError("later"), ValueError("again")
RULES: dict[Any, Any] = {KeyError: False, OSError: 30, ConnectionError: timedelta(minutes=2)}


def ending_of(error: BaseException) -> Ending:
    handler: Handler[[], None, object] = Handler(lambda: None, queue="work", name="work", retries=RULES)
    return ending_for_error(handler, Job(expire_in_seconds=7), error)


@pytest.mark.parametrize(
    "error",
    (NEVER, LATER, AGAIN, RetryLater("soon"), FailForGood("hopeless"), ConnectionError()),
    ids=lambda error: type(error).__name__,
)
def test_an_error_fails_the_attempt_as_its_rule_says(error):
    delay = {"OSError": 30.0, "ConnectionError": 120.0}.get(type(error).__name__)
    for_good = isinstance(error, KeyError | FailForGood)

    assert ending_of(error) == Failed(error, retry_after=delay, for_good=for_good)


@pytest.mark.parametrize(
    ("delay", "seconds"), ((60, 60.0), (0, 0.0), (-1, 0.0), (timedelta(minutes=1), 60.0), (100 * YEAR, 100.0 * YEAR))
)
def test_a_delay_is_a_number_of_seconds_that_is_not_negative(delay, seconds):
    error = RetryLater(delay=delay)

    assert ending_of(error) == Failed(error, retry_after=seconds)
    assert ending_of(Snooze(delay, "early")) == Snoozed("early", seconds)


def test_a_time_is_kept_with_a_time_zone():
    with timezone.override("Europe/Berlin"):
        aware, naive = RetryLater(at=NOON), RetryLater(at=NOON.replace(tzinfo=None))

        assert ending_of(aware) == Failed(aware, retry_after=NOON)
        assert ending_of(naive) == Failed(naive, retry_after=NOON - timedelta(hours=1))


@pytest.mark.parametrize("seconds", (100 * YEAR + 1, -100 * YEAR - 1))
def test_a_delay_of_more_than_a_hundred_years_is_an_error_that_says_so(seconds):
    ending = ending_of(Snooze(seconds))

    assert isinstance(ending, Failed)
    assert str(ending.error).startswith("Snooze cannot be understood: InvalidOption: ")
    assert ending_of(Snooze(-100 * YEAR, "past")) == Snoozed("past", 0.0)


def test_a_handler_that_ends_otherwise_is_told_by_its_ending():
    expired = ending_of(JobExpired())
    assert expired == Failed("It took longer than the 7 seconds it was allowed.", reason=FailureReason.EXPIRED)
    assert ending_of(CancelJob()) == Stopped("cancelled by its handler")
    assert ending_of(CancelJob("not needed")) == Stopped("not needed")
    assert ending_of(SystemExit(3)) == Failed("SystemExit: the handler called sys.exit(3)")


def test_a_handler_that_snoozes_because_a_connection_was_lost_has_not_failed():
    error = Snooze(60, "the database is away")
    error.__cause__ = psycopg.OperationalError("gone")

    assert ending_of(error) == Snoozed("the database is away", 60.0)


def test_the_next_job_of_a_group_begins_after_one_that_has_ended():
    ended: list[Ending] = [Completed(None), Stopped(""), Recorded()]
    others: list[Ending] = [Failed("boom"), Snoozed("", 0), Recorded(lost=True), NotBegun(), Late()]

    assert [continues_group(ending) for ending in (*ended, *others)] == [True] * 3 + [False] * 5
