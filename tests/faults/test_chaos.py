"""The short version of the soak: strict order while children are killed."""

from __future__ import annotations

import pytest

from django_jobqueue.models import Job
from django_jobqueue.states import JobState

from .chaos import LANES, SETTINGS, Plan, prove, send_all, shoot

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def test_nothing_is_lost_or_out_of_order_while_children_are_killed(start, history):  # G1 G2 G3 I1 I2
    plan = Plan(jobs=2000, keys=50, kills=20, every=0.4, seconds=0.1, seed=7)
    send_all(plan)
    worker = start(processes=4, **SETTINGS)

    kills = shoot(plan, worker, history)

    assert kills == plan.kills
    prove(plan, history)
    assert not Job.objects.exclude(state=JobState.COMPLETED).exists()
    assert Job.objects.in_queue(LANES).filter(retry_count__gt=0).exists()  # the kills hit something
    assert worker.stop() == 0
