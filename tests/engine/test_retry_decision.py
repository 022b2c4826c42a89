"""What a failed attempt does to its job, decided without a database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_jobqueue.engine.retry_decision import Failing, change_after
from django_jobqueue.models import Job
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.states import FailureReason, JobState

ORDERED, STANDARD = QueuePolicy.KEY_STRICT_FIFO, QueuePolicy.STANDARD
NOW = timezone.now()
CHARGED = {"state": JobState.UNKNOWN_RETRY, "assigned_at": NOW, "last_retry_at": NOW}


def job(**columns: Any) -> Job:
    """A running job with one retry left."""
    running = {"state": JobState.ACTIVE, "policy": STANDARD, "retry_limit": 1, "retry_count": 0, "crashes": 0}
    return Job(**running | {"retry_delay": 5, "retry_backoff": False, "retry_delay_max": None} | columns)


def failing(**options: Any) -> Failing:
    return Failing("it failed", FailureReason.ERROR, **options)


def after(job: Job, failing: Failing, **options: Any) -> tuple[str, str, int, bool, float | None]:
    """The state, the reason, the retries that this uses up, whether the job failed for good, and the delay."""
    change = change_after(job, failing, **options)
    return change.state.value, str(change.reason), change.charge, change.died, change.delay


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    (
        ({}, {}, ("retry", "error", 1, False, 5)),
        ({"retry_limit": None, "retry_count": 9}, {}, ("retry", "error", 1, False, 5)),
        ({"retry_count": 1}, {}, ("failed", "error", 0, True, None)),
        ({}, {"for_good": True}, ("failed", "error", 0, True, None)),
        ({}, {"for_good": True, "dies_as": JobState.EXPIRED}, ("expired", "error", 0, True, None)),
        ({}, {"waits_as": JobState.UNKNOWN_RETRY}, ("unknown_retry", "error", 1, False, 5)),
        ({}, {"retry_after": 9}, ("retry", "error", 1, False, 9)),
        ({}, {"retry_after": -9}, ("retry", "error", 1, False, 0)),
    ),
)
def test_a_job_waits_for_a_retry_while_it_has_one(columns, options, expected):
    assert after(job(**columns), failing(**options)) == expected


@pytest.mark.parametrize(
    ("columns", "is_charged"),
    (
        ({}, True),
        ({"last_retry_at": NOW - timedelta(seconds=1)}, False),
        ({"last_retry_at": None}, False),
        ({"assigned_at": None}, False),
        ({"state": JobState.ACTIVE}, False),
    ),
)
def test_an_attempt_uses_up_one_retry_although_it_ends_twice(columns, is_charged):
    late = job(retry_count=1, **CHARGED | columns)

    expected = ("retry", "error", 0, False, 5) if is_charged else ("failed", "error", 0, True, None)
    assert after(late, failing()) == expected


@pytest.mark.parametrize(("columns", "retries"), (({}, 2), (CHARGED, 1)), ids=("first", "charged before"))
def test_the_delay_grows_with_the_retries_that_are_used_up(columns, retries):
    again = job(retry_count=1, retry_limit=5, retry_backoff=True, retry_delay=1000, **columns)

    *_, delay = after(again, failing())

    assert delay is not None
    assert 1000 * 2 ** (retries - 1) <= delay <= 1000 * 2**retries


@pytest.mark.parametrize(
    ("crashes", "crashed", "state", "counted"),
    (
        (0, True, "retry", 1),
        (1, True, "retry", 2),
        (2, True, "failed", 3),
        (2, False, "retry", 0),
        (9, False, "retry", 0),
    ),
)
def test_a_job_that_crashed_its_workers_too_often_in_a_row_fails_for_good(settings, crashes, crashed, state, counted):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "CRASH_LIMIT": 3}

    change = change_after(job(crashes=crashes), failing(crashed=crashed, dies_as=JobState.EXPIRED))

    assert (change.state, change.crashes) == (state, counted)
    assert change.reason == ("crash_loop" if state == "failed" else "error")


def test_a_job_whose_place_for_a_retry_is_taken_fails():
    expired = failing(dies_as=JobState.EXPIRED)

    assert after(job(), expired, retry_taken=True) == ("failed", "retry_taken", 0, True, None)
    assert after(job(retry_count=1), expired, retry_taken=True) == ("expired", "error", 0, True, None)


@pytest.mark.parametrize(
    ("policy", "skips", "state"), ((ORDERED, True, "stopped"), (ORDERED, False, "failed"), (STANDARD, True, "failed"))
)
def test_only_an_ordered_queue_that_says_so_skips_what_failed_for_good(policy, skips, state):
    change = change_after(job(policy=policy, retry_count=1), failing(), skips=skips)

    assert (change.state, change.died) == (state, True)
    assert change.reason == ("exhausted" if state == "stopped" else "error")
