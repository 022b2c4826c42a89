"""Each worker is judged by its own timings, because a fleet may be configured differently."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job, Worker

from ..past import ago
from .lives import now, sent

pytestmark = pytest.mark.django_db


def claimed_by(queue, *, silent: float, **timings: float) -> Job:
    worker = Worker.objects.create(name="w", heartbeat_at=ago(seconds=silent), **timings)
    sent(queue)
    (job,) = services.fetch(queue.name, worker="w", incarnation=worker.pk)
    return job


@pytest.mark.parametrize(
    ("silent", "timings", "state"),
    (
        (50, {"lost_seconds": 100.0}, "active"),
        (50, {"lost_seconds": 20.0}, "unknown_retry"),
        (50, {}, "unknown_retry"),  # WORKER_LOST_SECONDS is 27
        (10, {"lost_seconds": 5.0}, "unknown_retry"),
        (20, {"unlocked_seconds": 40.0, "has_session_lock": True}, "active"),
        (20, {"unlocked_seconds": 15.0, "has_session_lock": True}, "unknown_retry"),
    ),
)
def test_a_worker_is_lost_by_its_own_timings(queue, silent, timings, state):  # F85
    job = claimed_by(queue, silent=silent, **timings)

    services.recover_lost()

    assert now(job).state == state


@pytest.mark.parametrize(("grace", "state"), ((100.0, "active"), (5.0, "retry"), (None, "active")))
def test_an_overdue_job_is_given_the_grace_of_its_own_worker(queue, grace, state):  # F85
    job = claimed_by(queue, silent=1, stop_grace_seconds=grace)
    Job.objects.update(expire_at=ago(seconds=20))

    services.expire()

    assert now(job).state == state


@pytest.mark.parametrize(
    ("silent", "overdue", "state"),
    (
        (1, -60, "cancelling"),  # alive, and its time is not used up
        (1, 10, "cancelling"),  # alive, and within the grace
        (1, 40, "unknown_stopped"),
        (500, -60, "unknown_stopped"),  # gone
    ),
)
def test_a_cancellation_ends_as_unknown_only_when_its_handler_cannot_run_any_more(  # F77
    queue, silent, overdue, state
):
    job = claimed_by(queue, silent=silent, lost_seconds=27.0, stop_grace_seconds=30.0)
    services.cancel([job.pk])
    Job.objects.update(cancel_requested_at=ago(seconds=400), expire_at=ago(seconds=overdue))

    services.expire()

    assert now(job).state == state


def test_a_cancellation_of_a_claim_without_a_worker_ends_after_its_grace(queue):  # B12 R278
    sent(queue)
    (job,) = services.fetch(queue.name)
    services.cancel([job.pk])
    services.expire()
    assert now(job).state == "cancelling"

    Job.objects.update(cancel_requested_at=ago(seconds=301))
    services.expire()

    assert now(job).state == "unknown_stopped"


def test_a_living_housekeeping_process_keeps_jobs_whose_heartbeats_it_could_not_send(queue):  # F86
    job = claimed_by(queue, silent=1, lost_seconds=27.0)
    Job.objects.update(heartbeat_seconds=10, heartbeat_at=ago(seconds=60))

    services.recover_lost()

    assert now(job).state == "active"
