"""The table of states is the law: what applies transitions refuses everything that it does not list."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from django_jobqueue import services
from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import rows
from django_jobqueue.engine.transitions import Become, Change, move
from django_jobqueue.exceptions import InvalidTransition
from django_jobqueue.models import Queue
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.states import FOLLOWS, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import rewrite

from .lives import claimed, job_in, now

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("state", "wanted"), tuple(product(sorted(JobState), sorted(JobState))))
def test_a_transition_happens_exactly_if_the_table_lists_it(queue, state, wanted):  # R267 R312
    job = job_in(state, queue)

    def moved() -> None:
        move("default", [job.pk], Become(Change(wanted)))

    if wanted in FOLLOWS[state]:
        moved()
        assert now(job).state == wanted
    else:
        with pytest.raises(InvalidTransition, match=f"{state}.*{wanted}"):
            moved()
        assert now(job).state == state


def test_a_late_report_of_an_expiry_ends_a_job_whose_worker_was_thought_lost(queue):  # B10
    services.send(queue.name, retry_limit=0)
    (job,) = services.fetch(queue.name, worker="w")
    services.mark_worker_unresponsive("w")

    services.fail(job, "too long", reason="expired")  # type: ignore[arg-type]

    assert now(job).state == "expired"


@pytest.mark.parametrize(
    ("name", "state", "seconds", "seconds_if_failed", "kept"),
    (
        ("queue", JobState.FAILED, 7, 9, 9),
        ("queue", JobState.FAILED, 7, 0, None),
        ("queue", JobState.STOPPED, 7, 9, 7),
        ("queue", JobState.STOPPED, 0, 9, None),
        ("fifo_queue", JobState.FAILED, 7, 9, None),
        ("fifo_queue", JobState.STOPPED, 7, 9, 7),
    ),
)
def test_an_ended_job_is_kept_as_long_as_it_says_for_this_end(
    request, name, state, seconds, seconds_if_failed, kept
):  # B14
    queue: Queue = request.getfixturevalue(name)
    job = claimed(queue)
    rewrite(job, delete_after_seconds=seconds, delete_failed_after_seconds=seconds_if_failed)

    move("default", [job.pk], Become(Change(state)))

    ended = now(job)
    assert ended.finalized_at is not None
    assert ended.delete_at == (None if kept is None else ended.finalized_at + timedelta(seconds=kept))


def test_only_another_job_of_its_key_keeps_a_stately_job_from_waiting_for_a_retry(stately_queue):
    states = {"a": JobState.ACTIVE, "b": JobState.UNKNOWN_RETRY, "c": JobState.ACTIVE}
    jobs = {key: JobFactory(queue=stately_queue, singleton_key=key, state=state) for key, state in states.items()}
    beside = JobFactory(queue=stately_queue, singleton_key="c", state=JobState.RETRY)
    JobFactory(queue=QueueFactory(policy=QueuePolicy.STATELY), singleton_key="a", state=JobState.RETRY)
    JobFactory(queue=stately_queue, singleton_key="a", state=JobState.CREATED)
    rewrite(JobFactory(queue=stately_queue, singleton_key="a", state=JobState.RETRY), policy=QueuePolicy.STANDARD)

    found = rows("default", sql.transitions.RETRYING_BESIDE, {"ids": [job.pk for job in jobs.values()]})

    assert found == [(jobs["c"].pk, beside.pk)]


@pytest.mark.parametrize(
    ("name", "state", "is_blocked"),
    (
        ("fifo_queue", JobState.FAILED, True),
        ("fifo_queue", JobState.CREATED, False),
        ("queue", JobState.FAILED, False),
    ),
)
def test_a_purge_tells_whether_a_key_was_blocked(request, name, state, is_blocked):
    queue: Queue = request.getfixturevalue(name)
    JobFactory(queue=queue, state=state, singleton_key="a")
    JobFactory(queue=QueueFactory(policy=queue.policy), state=JobState.FAILED, singleton_key="a")

    ((_, _, blocked, number),) = rows("default", sql.transitions.PURGE, {"queue": queue.name, "state": None})

    assert (blocked, number) == (is_blocked, 1)
