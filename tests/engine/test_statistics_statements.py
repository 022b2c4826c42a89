"""Each condition and each order of the statements that sum up minutes, with a row that only that one leaves out."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import rows
from django_jobqueue.models import QueueMinute
from tests.factories import QueueFactory

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
