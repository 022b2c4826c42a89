"""Figures per queue and minute: counted once, from what the job table says, and kept when the jobs are gone."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from hypothesis import given
from hypothesis import strategies as st

from django_jobqueue import services, statistics
from django_jobqueue.engine.sql.statistics import RANGES, SUMMARIZE
from django_jobqueue.expressions import StatementTimestamp
from django_jobqueue.models import Job, Maintenance, Queue, QueueMinute, QueueTotal
from django_jobqueue.services.maintain import fill_minutes, forget_old_minutes
from django_jobqueue.states import Hold, JobState
from django_jobqueue.statistics import BOUNDS, bucket_of, percentile

from .factories import JobFactory
from .past import rewrite
from .services.lives import claimed, sent

MINUTE = timedelta(minutes=1)


def this_minute() -> datetime:
    """The minute that is not over yet, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT date_trunc('minute', statement_timestamp(), 'UTC')")
        return cursor.fetchone()[0]  # type: ignore[no-any-return]


def earlier(minutes: int, seconds: float = 10) -> datetime:
    """A moment within the minute that began so many minutes before this one."""
    return this_minute() - minutes * MINUTE + timedelta(seconds=seconds)


def minute_of(queue: Queue, minutes: int) -> QueueMinute:
    return QueueMinute.objects.get(queue=queue, minute=this_minute() - minutes * MINUTE)


def figures(queue: Queue, minutes: int = 1) -> dict[str, Any]:
    """What is not zero; a minute in which nothing happened and nothing waited has no row."""
    row = QueueMinute.objects.filter(queue=queue, minute=this_minute() - minutes * MINUTE).first()
    return {name: value for name in statistics.COUNTERS if (value := getattr(row, name, 0))}


@pytest.fixture(autouse=True)
def _early_in_the_minute(request: pytest.FixtureRequest) -> None:
    """Begin when this minute has some seconds left, because these tests speak of "the minute before"."""
    if request.node.get_closest_marker("django_db") is None:
        return
    request.getfixturevalue("transactional_db" if _is_transactional(request) else "db")
    deadline = time.monotonic() + 10
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute("SELECT extract(second FROM clock_timestamp()) < 54")
            if cursor.fetchone()[0]:
                return
            time.sleep(0.05)


def _is_transactional(request: pytest.FixtureRequest) -> bool:
    marker = request.node.get_closest_marker("django_db")
    return bool(marker and marker.kwargs.get("transaction")) or "transactional_db" in request.fixturenames


# --------------------------------------------------------------------------------------------------------- buckets


@given(st.floats(min_value=0, max_value=1e9))
def test_a_time_lies_in_its_bucket(seconds):
    bucket = bucket_of(seconds)

    assert bucket == 0 or BOUNDS[bucket - 1] <= seconds
    assert bucket == len(BOUNDS) or seconds < BOUNDS[bucket]


def test_buckets_are_powers_of_two_of_milliseconds():
    assert (BOUNDS[0], BOUNDS[1], BOUNDS[10], BOUNDS[-1]) == (0.001, 0.002, 1.024, 2**30 / 1000)
    assert [bucket_of(s) for s in (0, 0.0009, 0.001, 0.0019, 0.002, 1, 86_400 * 30)] == [0, 0, 1, 1, 2, 10, 31]


def test_a_percentile_lies_within_its_bucket():
    histogram = [0] * 11 + [100]  # all took between 1.024 and 2.048 seconds

    assert percentile(histogram, 0) == pytest.approx(1.024)
    assert percentile(histogram, 0.5) == pytest.approx(1.536)
    assert percentile(histogram, 1) == pytest.approx(2.048)


def test_a_percentile_of_nothing_is_nothing():
    assert percentile([], 0.95) is None
    assert percentile([0, 0], 0.95) is None


def test_a_percentile_beyond_all_buckets_is_their_end():
    assert percentile([0] * 31 + [5], 0.5) == BOUNDS[-1]


@given(st.lists(st.floats(min_value=0.0001, max_value=1e6), min_size=1, max_size=200), st.floats(0, 1))
def test_a_percentile_is_off_by_less_than_a_factor_of_two(times, share):
    histogram = [0] * 32
    for seconds in times:
        histogram[bucket_of(seconds)] += 1

    found = percentile(histogram, share)
    true = sorted(times)[max(0, min(len(times) - 1, -(-int(share * len(times) * 1000) // 1000) - 1))]

    assert found is not None
    assert min(times) / 2 - 0.001 <= found <= max(max(times) * 2, 0.001)
    neighbours = sorted(times)
    place = neighbours.index(true)
    low, high = neighbours[max(0, place - 1)], neighbours[min(len(times) - 1, place + 1)]
    assert low / 2 - 0.001 <= found <= high * 2 + 0.001


# ------------------------------------------------------------------------------------------------ what is counted


@pytest.mark.django_db
def test_jobs_are_counted_in_the_minute_they_were_sent(queue):  # R366
    for _ in range(3):
        JobFactory(queue=queue, created_at=earlier(1))
    JobFactory(queue=queue, created_at=earlier(2))
    JobFactory(queue=queue, created_at=earlier(0, 0))

    assert fill_minutes() == 60

    assert figures(queue, 1) == {"sent": 3}
    assert figures(queue, 2) == {"sent": 1}
    assert not QueueMinute.objects.filter(minute__gte=this_minute()).exists()


@pytest.mark.django_db
def test_the_first_and_the_last_moment_of_a_minute_belong_to_it(queue):
    JobFactory(queue=queue, created_at=earlier(3, 0))
    JobFactory(queue=queue, created_at=earlier(3, 59.999999))

    fill_minutes()

    assert figures(queue, 3) == {"sent": 2}


@pytest.mark.django_db
def test_starts_are_counted_with_how_long_the_jobs_had_waited(queue):
    began = earlier(1)
    JobFactory(queue=queue, state="active", created_at=began - timedelta(seconds=3), started_at=began)
    delayed = {"created_at": began - timedelta(days=1), "first_start_after": began - timedelta(milliseconds=1500)}
    JobFactory(queue=queue, state="active", started_at=began, **delayed)

    fill_minutes()

    waited = [0] * (bucket_of(3) + 1)
    waited[bucket_of(3)], waited[bucket_of(1.5)] = 1, 1
    assert (figures(queue)["started"], minute_of(queue, 1).waited) == (2, waited)


@pytest.mark.django_db
def test_a_job_is_started_once_however_many_attempts_it_has(queue):
    JobFactory(queue=queue, state="active", started_at=earlier(9), assigned_at=earlier(1), created_at=earlier(9))

    fill_minutes()

    assert figures(queue, 9) == {"sent": 1, "started": 1}
    assert figures(queue, 1) == {}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "counted"), (("completed", "completed"), ("failed", "failed"), ("expired", "failed"))
)
def test_ends_are_counted_with_how_long_the_last_attempt_ran(queue, state, counted):
    ended, old = earlier(1), earlier(50)
    times = {"created_at": old, "started_at": old, "assigned_at": ended - timedelta(seconds=5)}
    JobFactory(queue=queue, state=state, finalized_at=ended, attempt_finished_at=None, **times)

    fill_minutes()

    assert figures(queue) == {counted: 1}
    assert minute_of(queue, 1).ran == [0] * bucket_of(5) + [1]


@pytest.mark.django_db
@pytest.mark.parametrize("state", ("cancelled", "stopped", "unknown_stopped"))
def test_what_was_stopped_has_neither_completed_nor_failed(queue, state):
    old = earlier(50)
    JobFactory(queue=queue, state=state, finalized_at=earlier(1), created_at=old, started_at=old)

    fill_minutes()

    assert figures(queue) == {}


@pytest.mark.django_db
def test_a_job_that_its_queue_skipped_has_failed(fifo_queue):  # B23
    old = earlier(50)
    JobFactory(queue=fifo_queue, state="stopped", reason="exhausted", finalized_at=earlier(1), created_at=old)

    fill_minutes()

    assert figures(fifo_queue)["failed"] == 1


@pytest.mark.django_db
def test_every_failed_attempt_that_is_followed_by_another_is_a_retry(queue):
    job = claimed(queue, retry_limit=5)
    for place in range(3):
        services.fail(job, "boom")
        if place < 2:
            (job,) = services.fetch(queue.name)
    (job,) = services.fetch(queue.name)
    services.give_back(job, "drained")  # that is none
    _attempts_at(job, [earlier(3), earlier(2), earlier(2), earlier(1)])

    fill_minutes()

    assert figures(queue, 3)["retried"] == 1
    assert figures(queue, 2)["retried"] == 2
    assert "retried" not in figures(queue, 1)


@pytest.mark.django_db
def test_the_failure_that_ends_a_job_is_no_retry(queue):
    job = claimed(queue, retry_limit=1)
    services.fail(job, "boom")
    (job,) = services.fetch(queue.name)
    services.fail(job, "boom")
    _attempts_at(job, [earlier(2), earlier(1)])
    rewrite(job, finalized_at=earlier(1))

    fill_minutes()

    assert figures(queue, 2) == {"retried": 1}
    assert figures(queue, 1) == {"failed": 1}


def _attempts_at(job: Job, moments: list[datetime]) -> None:
    attempts = Job.objects.get(pk=job.pk).attempts
    for attempt, moment in zip(attempts, moments, strict=True):
        attempt["ended"] = moment.isoformat()
    rewrite(job, attempts=attempts, attempt_finished_at=moments[-1], created_at=earlier(70), started_at=earlier(70))


@pytest.mark.django_db
def test_what_waits_and_is_blocked_is_told_of_the_last_minute_only(fifo_queue, queue):
    JobFactory(queue=fifo_queue, state="failed", singleton_key="a", created_at=earlier(5))
    JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)
    JobFactory(queue=fifo_queue, singleton_key="b")
    sent(queue, delay=60), sent(queue)
    services.fail(claimed(queue), "boom")

    fill_minutes()

    last, before = minute_of(fifo_queue, 1), minute_of(fifo_queue, 5)
    assert (last.waiting, last.blocked_keys) == (2, 1)
    assert (before.waiting, before.blocked_keys) == (None, None)
    assert (minute_of(queue, 1).waiting, minute_of(queue, 1).blocked_keys) == (3, 0)


@pytest.mark.django_db
def test_a_queue_in_which_nothing_happens_and_nothing_waits_has_no_rows(queue):
    fill_minutes()

    assert not QueueMinute.objects.exists()


@pytest.mark.django_db
def test_queues_with_a_part_of_their_own_are_counted_too(transactional_db):
    services.create_queue("own", partition=True)
    try:
        job = sent("own")
        rewrite(job, created_at=earlier(1))
        fill_minutes()

        assert figures(Queue.objects.get(pk="own")) == {"sent": 1}
    finally:
        services.delete_queue("own")


# -------------------------------------------------------------------------------------- once, and only what is over


@pytest.mark.django_db
def test_the_current_minute_can_be_counted_and_is_counted_again(queue):
    JobFactory(queue=queue, created_at=earlier(0, 0))

    fill_minutes(until_now=True)
    assert figures(queue, 0) == {"sent": 1}

    JobFactory(queue=queue, created_at=earlier(0, 0))
    assert fill_minutes(until_now=True) == 0
    assert figures(queue, 0) == {"sent": 2}
    assert QueueTotal.objects.get(queue=queue).sent == 2


@pytest.mark.django_db
def test_a_minute_is_filled_once(queue):
    JobFactory(queue=queue, created_at=earlier(1))

    assert (fill_minutes(), fill_minutes()) == (60, 0)
    assert figures(queue) == {"sent": 1}


@pytest.mark.django_db
def test_after_an_outage_the_last_hour_is_made_up_for(queue):
    Maintenance.objects.create(counted_until=earlier(600, 0))
    for minutes in (59, 61, 599):
        JobFactory(queue=queue, created_at=earlier(minutes))

    assert fill_minutes() == 60
    assert QueueMinute.objects.filter(sent__gt=0).count() == 1
    assert figures(queue, 59) == {"sent": 1}


@pytest.mark.django_db
def test_a_clock_that_was_put_back_does_not_stop_the_count(queue):
    Maintenance.objects.create(counted_until=earlier(-60, 0))
    JobFactory(queue=queue, created_at=earlier(1))

    assert fill_minutes() == 60
    assert figures(queue) == {"sent": 1}


@pytest.mark.django_db
def test_only_minutes_that_are_new_count_as_filled(queue):
    Maintenance.objects.create(counted_until=earlier(3, 0))

    assert fill_minutes() == 3


@pytest.mark.django_db
def test_a_send_that_was_committed_late_is_found_a_minute_later(queue):
    fill_minutes()
    JobFactory(queue=queue, created_at=earlier(1))
    Maintenance.objects.update(counted_until=this_minute())
    _a_minute_passes()

    fill_minutes()

    assert figures(queue, 2)["sent"] == 1
    assert QueueTotal.objects.get(queue=queue).sent == 1


@pytest.mark.django_db
def test_what_is_deleted_or_revived_stays_counted(queue):
    ended = earlier(1)
    times = {"finalized_at": ended, "created_at": ended, "started_at": ended, "assigned_at": ended}
    dead, done = (JobFactory(queue=queue, state=state, **times) for state in ("failed", "completed"))
    fill_minutes()
    before = figures(queue)

    services.retry(dead)
    services.delete([done.pk])
    _a_minute_passes()
    fill_minutes()

    assert before == {"sent": 2, "started": 2, "completed": 1, "failed": 1}
    assert figures(queue, 2) == before


def _a_minute_passes() -> None:
    """Everything that was counted, and all times of jobs, lie a minute further back."""
    for model, columns in (
        (QueueMinute, ["minute"]),
        (Maintenance, ["counted_until"]),
        (Job, ["created_at", "started_at", "assigned_at", "attempt_finished_at", "finalized_at"]),
    ):
        model.objects.update(**{column: F(column) - MINUTE for column in columns})


@pytest.mark.django_db
def test_totals_are_the_sum_of_all_minutes_and_outlive_them(queue, settings):
    ended = earlier(2)
    JobFactory(
        queue=queue, state="completed", created_at=ended, started_at=ended, assigned_at=ended, finalized_at=ended
    )
    fill_minutes()
    JobFactory(queue=queue, created_at=earlier(1))
    _a_minute_passes()
    fill_minutes()
    QueueMinute.objects.update(minute=F("minute") - timedelta(days=31))

    assert forget_old_minutes() == 3  # the last is there for what waited

    total = QueueTotal.objects.get(queue=queue)
    assert (total.sent, total.started, total.completed, total.failed, total.retried) == (2, 1, 1, 0, 0)
    assert (sum(total.waited), sum(total.ran)) == (1, 1)


@pytest.mark.django_db
def test_minutes_are_kept_as_long_as_the_setting_says(queue, settings):
    settings.JOBQUEUE = {"STATISTICS_DAYS": 2}
    for days in (1, 3, 4):
        QueueMinute.objects.create(queue=queue, minute=this_minute() - timedelta(days=days))

    assert forget_old_minutes(limit=1) == 1
    assert forget_old_minutes() == 1
    assert QueueMinute.objects.get().minute == this_minute() - timedelta(days=1)


@pytest.mark.django_db
def test_a_queue_that_is_deleted_takes_its_figures_along(queue):
    JobFactory(queue=queue, created_at=earlier(1))
    fill_minutes()

    services.delete_queue(queue.name)
    _a_minute_passes()
    fill_minutes()

    assert (QueueMinute.objects.count(), QueueTotal.objects.count()) == (0, 0)


@pytest.mark.django_db
def test_a_job_whose_queue_is_gone_is_in_no_figures():
    """A slow transaction can send to a queue while another deletes it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, created_at) VALUES (gen_random_uuid(), 'gone', %s)", [earlier(1)]
        )

    assert fill_minutes() == 60
    assert not QueueMinute.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_many_that_count_at_once_the_figures_are_right_once(queue, race):
    for _ in range(20):
        JobFactory(queue=queue, created_at=earlier(1))

    filled = race(6, fill_minutes)

    assert sum(filled) == 60
    assert figures(queue) == {"sent": 20}
    assert QueueTotal.objects.get(queue=queue).sent == 20


@pytest.mark.django_db(transaction=True)
def test_ranges_that_autovacuum_has_not_summarized_are_summarized_first():
    """Otherwise each count would read all of them, again and again."""
    services.create_queue("plain")
    with connection.cursor() as cursor:
        cursor.execute(RANGES)
        ((index,),) = cursor.fetchall()
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, name) "
            "SELECT gen_random_uuid(), 'plain', repeat('x', 200) FROM generate_series(1, 10000) i"
        )
        cursor.execute("SELECT brin_desummarize_range(%s::regclass, 0)", [index])

    fill_minutes()

    with connection.cursor() as cursor:
        cursor.execute(SUMMARIZE, [index])
        assert cursor.fetchone() == (0,)


@pytest.mark.django_db(transaction=True)
def test_whoever_vacuums_is_not_waited_for(queue, race):
    JobFactory(queue=queue, created_at=earlier(1))
    locked, done = threading.Event(), threading.Event()

    def vacuums() -> int:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE jobqueue_job_default IN SHARE UPDATE EXCLUSIVE MODE")
            locked.set()
            assert done.wait(30)
        return 0

    def counts() -> int:
        assert locked.wait(30)
        try:
            return fill_minutes()
        finally:
            done.set()

    assert race(2, vacuums, counts) == [0, 60]
    assert figures(queue) == {"sent": 1}


@pytest.mark.django_db
def test_figures_agree_with_the_activity_counted_from_the_jobs(queue):  # R366
    for number in range(10):
        ended = earlier(number % 3 + 1)
        state = ("completed", "failed")[number % 2]
        JobFactory(queue=queue, state=state, created_at=ended, started_at=ended, assigned_at=ended, finalized_at=ended)

    fill_minutes()

    counted = {(row.minute, row.sent, row.completed, row.failed) for row in QueueMinute.objects.filter(sent__gt=0)}
    assert counted == {(m.minute, m.created, m.completed, m.failed) for m in services.activity(queue.name)}


@pytest.mark.django_db
def test_a_whole_life_by_the_verbs_is_counted(queue):
    job = claimed(queue)
    services.complete(job)
    assert Job.objects.get(pk=job.pk).state == JobState.COMPLETED
    Job.objects.update(
        **{name: F(name) - MINUTE for name in ("created_at", "started_at", "assigned_at", "finalized_at")}
    )

    fill_minutes()

    total = QueueTotal.objects.get(queue=queue)
    assert (total.sent, total.started, total.completed) == (1, 1, 1)
    assert Maintenance.objects.filter(counted_until__lte=StatementTimestamp()).count() == 1
