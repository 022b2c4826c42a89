"""Each condition and each order of the statements that sum up minutes, with a row that only that one leaves out."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import rows
from django_jobqueue.models import QueueMinute
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago
from tests.services.lives import claimed

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("statement", "sums"),
    ((sql.statistics.STEPS, lambda sent: sent), (sql.statistics.TIMES, lambda waited: waited[0])),
    ids=("steps", "times"),
)
def test_only_the_minutes_of_these_queues_since_that_time_are_summed_up_in_order(queue, statement, sums):
    since = timezone.now().replace(second=0, microsecond=0)
    steps = [since + timedelta(minutes=minutes) for minutes in range(40)]
    for minute in (*reversed(steps), since - timedelta(minutes=1)):
        QueueMinute.objects.create(queue=queue, minute=minute, sent=1, waited=[1], ran=[1])
    QueueMinute.objects.create(queue=QueueFactory(), minute=since, sent=9, waited=[9], ran=[9])
    params = {"queues": [queue.name], "since": since, "step": timedelta(minutes=1)}

    found = rows("default", statement, params)

    assert [(step, sums(value)) for step, value, *_ in found] == [(step, 1) for step in steps]


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
