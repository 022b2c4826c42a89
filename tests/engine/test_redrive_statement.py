"""Each part of the statement that sends the jobs of dead letters again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import Rows, rows
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Queue
from django_jobqueue.policies import QueuePolicy
from tests.factories import JobFactory, QueueFactory

from .statements import turned_round

pytestmark = pytest.mark.django_db


def redrive(letters: list[Job], queues: list[str], keys: list[str] | None = None) -> tuple[list[UUID], Rows]:
    ids = [uuid7() for _ in letters]
    params = {
        "letters": [letter.pk for letter in letters],
        "ids": ids,
        "queues": queues,
        "keys": keys or [""] * len(letters),
        "source_ids": ids,
        "source_queues": queues,
    }
    return ids, rows("default", sql.transitions.REDRIVE, params)


def sent(queue: Queue) -> list[Any]:
    return list(Job.objects.in_queue(queue.name).order_by("seq").values_list("data", "singleton_key"))


def test_the_jobs_are_numbered_in_the_order_given(queue):
    letters = [JobFactory(queue=QueueFactory(name=f"dead {n}"), data=n) for n in range(4)]
    turned_round(*letters)
    given = [letters[n] for n in (2, 0, 3, 1)]

    redrive(given, [queue.name] * 4)

    assert [data for data, _ in sent(queue)] == [2, 0, 3, 1]


def test_each_goes_to_its_queue_with_the_policy_of_that_queue(queue, fifo_queue):
    dead = QueueFactory(name="dead")
    letters = [JobFactory(queue=dead, data=n) for n in range(2)]

    ids, found = redrive(letters, [queue.name, fifo_queue.name], ["", "k"])

    assert sorted(found) == sorted(zip(ids, [queue.name, fifo_queue.name], strict=True))
    assert (sent(queue), sent(fifo_queue)) == ([(0, "")], [(1, "k")])
    assert Job.objects.get(pk=ids[1]).policy == QueuePolicy.KEY_STRICT_FIFO


def test_a_queue_that_does_not_exist_and_a_slot_that_is_taken_give_no_row(queue):
    dead = QueueFactory(name="dead")
    one = QueueFactory(name="one", policy=QueuePolicy.EXCLUSIVE)
    JobFactory(queue=one)
    letters = [JobFactory(queue=dead, data=n) for n in range(3)]

    ids, found = redrive(letters, ["nowhere", one.name, queue.name])

    assert found == [(ids[2], queue.name)]
