from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_jobqueue.policies import POLICIES
from django_jobqueue.states import ELIGIBLE, FINAL, Hold, JobState

from .factories import JobFactory, QueueFactory

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", list(JobState))
def test_a_job_of_every_state_and_policy_can_be_made(policy, state):
    job = JobFactory(queue=QueueFactory(policy=policy), state=state)

    assert (job.state, job.policy) == (state, policy)
    assert (job.finalized_at is not None) == (state in FINAL)
    assert (job.started_at is None) == (state in {JobState.CREATED, JobState.CANCELLED})
    assert job.seq == job.position
    assert job.created_at is not None


def test_a_job_inherits_its_queue_s_options_unless_given():
    queue = QueueFactory(retry_limit=7, expire_in_seconds=5)

    job = JobFactory(queue=queue, expire_in_seconds=9)

    assert (job.retry_limit, job.expire_in_seconds) == (7, 9)


@pytest.mark.parametrize("state", sorted(ELIGIBLE))
def test_a_job_that_starts_later_is_held_until_then(queue, state):
    job = JobFactory(queue=queue, state=state, start_after=timezone.now() + timedelta(hours=1))

    assert job.hold == Hold.UNTIL


def test_a_lane_hold_can_be_given(fifo_queue):
    assert JobFactory(queue=fifo_queue, hold=Hold.LANE).hold == Hold.LANE


@pytest.mark.django_db(transaction=True)
def test_a_race_runs_each_function_on_a_connection_of_its_own(race):
    def backend() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return int(cursor.fetchone()[0])

    assert len({backend(), *race(3, backend)}) == 4
