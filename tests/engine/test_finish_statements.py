"""Each condition and each order of the statements that finish jobs, with a row that only that one leaves out."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from django_jobqueue import services
from django_jobqueue.engine import sql
from django_jobqueue.models import Queue
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread
from tests.services.lives import claimed, now

from .statements import CLAIM, ask, held, turned_round

pytestmark = pytest.mark.django_db


def handed_over(queue: Queue, **params: Any) -> list[UUID]:
    return [id for *_, id in ask(queue, sql.finish.HAND_OVER_HERE, keys=["a"], **{"tags": []} | params, **CLAIM)]


def test_a_lane_is_handed_over_unless_a_more_important_job_waits_in_its_queue(fifo_queue):
    next = JobFactory(queue=fifo_queue, singleton_key="a", priority=3)
    JobFactory(queue=QueueFactory(), priority=9)
    held(fifo_queue, singleton_key="late", priority=9, start_after=ago(hours=-1))
    assert handed_over(fifo_queue, tags=["x"]) == []

    others = [JobFactory(queue=fifo_queue, singleton_key=f"{priority}", priority=priority) for priority in (0, 5)]
    turned_round(*reversed(others))
    assert handed_over(fifo_queue) == []

    others[1].delete()
    assert handed_over(fifo_queue) == [next.pk]


def test_a_lane_with_a_due_job_in_front_is_not_handed_over(fifo_queue):
    held(fifo_queue, singleton_key="a", start_after=ago(seconds=1))
    JobFactory(queue=fifo_queue, singleton_key="a")

    assert handed_over(fifo_queue) == []


def test_a_job_that_was_only_read_is_completed_only_in_the_attempt_that_was_read(queue):
    read = reread(claimed(queue))
    services.fail(read, "no", retry_after=0)
    services.fetch(queue.name)

    finished = services.finish_many([(read, None)])

    assert finished.lost == [read.pk]
    assert now(read).state == "active"
    assert services.finish_many([(reread(read), None)]).completed == [read.pk]
