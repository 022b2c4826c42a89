"""Each condition and each order of the statements that sum up minutes, with a row that only that one leaves out."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import execute, rows
from django_jobqueue.models import QueueMinute, QueueSpan
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago
from tests.services.lives import claimed

pytestmark = pytest.mark.django_db


def test_only_the_minutes_of_this_queue_since_that_time_are_summed_up_in_order(queue):
    since = timezone.now().replace(second=0, microsecond=0)
    steps = [since + timedelta(minutes=minutes) for minutes in range(40)]
    for minute in (*reversed(steps), since - timedelta(minutes=1)):
        QueueMinute.objects.create(queue=queue, minute=minute, sent=1, waited=[1], ran=[1])
    other = QueueFactory()
    QueueMinute.objects.create(queue=other, minute=since, sent=9, waited=[9], ran=[9])

    def found(name: str | None) -> list[tuple[datetime, int, int]]:
        params = {"queue": name, "since": since, "step": timedelta(minutes=1)}
        read = rows("default", sql.statistics.STEPS_OF_MINUTES, params)
        return [(step, int(sent), waited[0]) for step, sent, *_, waited, _ in read]

    assert found(queue.name) == [(step, 1, 1) for step in steps]
    assert found(None)[:2] == [(steps[0], 10, 10), (steps[1], 1, 1)]


@pytest.mark.parametrize("is_all", (False, True), ids=("of a queue", "of all"))
def test_only_the_spans_of_this_queue_or_of_all_since_that_time_are_summed_up_in_order(queue, is_all):
    since = timezone.now().replace(minute=0, second=0, microsecond=0)
    steps = [since + timedelta(minutes=10 * number) for number in range(30)]
    for at in (*reversed(steps), since - timedelta(minutes=10)):
        for whose, sent in ((queue, 1), (None, 5), (QueueFactory(), 9)):
            QueueSpan.objects.create(queue=whose, begins_at=at, sent=sent, waited=[sent])
    whose = sql.statistics.OF_ALL_QUEUES if is_all else sql.statistics.OF_QUEUE
    params = {"queue": queue.name, "since": since, "step": timedelta(minutes=10)}

    found = rows("default", sql.statistics.STEPS_OF_SPANS.format(whose=whose), params)

    assert [(step, sent) for step, sent, *_ in found] == [(step, 5 if is_all else 1) for step in steps]


def test_spans_have_the_sums_of_their_minutes_and_the_depth_of_the_highest(queue):
    other = QueueFactory()
    begin = timezone.now().replace(minute=0, second=0, microsecond=0)
    for whose, number, waits in ((queue, 0, 5), (queue, 1, 1), (other, 1, 7), (queue, 9, None), (queue, 10, 100)):
        at = begin + timedelta(minutes=number)
        QueueMinute.objects.create(queue=whose, minute=at, sent=2, waiting=waits, waited=[0, 1])
    QueueMinute.objects.create(queue=queue, minute=begin - timedelta(minutes=1), sent=1)

    for _ in range(2):  # the second time over the rows of the first
        minute = begin + timedelta(minutes=4)
        execute("default", sql.statistics.SUM_UP, {"first": minute, "last": minute})

    spans = QueueSpan.objects.order_by("queue_id").values_list("queue_id", "begins_at", "sent", "waiting")
    assert sorted(spans, key=str) == sorted(
        [(queue.name, begin, 6, 5), (other.name, begin, 2, 7), (None, begin, 8, 8)], key=str
    )
    assert QueueSpan.objects.get(queue=None).waited[:2] == [0, 4]


def test_the_oldest_spans_of_each_queue_and_of_all_are_forgotten(queue):
    for days in (1, 40, 50):
        for whose in (queue, None):
            QueueSpan.objects.create(queue=whose, begins_at=ago(days=days))

    assert execute("default", sql.statistics.FORGET_SPANS, {"days": 30, "most": 3}) == 3
    assert execute("default", sql.statistics.FORGET_SPANS, {"days": 30, "most": 3}) == 1
    assert QueueSpan.objects.count() == 2


def test_only_jobs_that_ended_within_that_time_are_counted(queue):
    for moment in (ago(hours=2), ago(), ago(hours=-2)):
        JobFactory(queue=queue, state=JobState.COMPLETED, finalized_at=moment)

    assert [number for *_, number in rows("default", sql.statistics.ENDED, hour_around_now())] == [1]


def test_a_failed_attempt_is_counted_while_its_job_waits_for_the_next(queue):
    services.fail(claimed(queue), "no")

    assert [number for *_, number in rows("default", sql.statistics.RETRIED, hour_around_now())] == [1]


def hour_around_now() -> dict[str, datetime]:
    now = timezone.now()
    return {"since": now - timedelta(hours=1), "until": now + timedelta(hours=1)}
