"""Each condition and each order of the statements that make jobs of staged rows, which lie in another order."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection

from django_jobqueue.engine.sql.staging import COMMIT, SHOWN
from django_jobqueue.models import Job, Queue, StagedJob
from django_jobqueue.states import Hold, JobState
from tests.factories import JobFactory, QueueFactory

pytestmark = pytest.mark.django_db

ONE, TWO, THREE = (UUID(int=number) for number in (1, 2, 3))


def stage(*rows: dict[str, Any]) -> list[StagedJob]:
    """These rows, staged from the last to the first. The data of each is its number, which says their order."""
    staged = {}
    for number, row in reversed(list(enumerate(rows, 1))):
        columns = {"write": "ours", "partition": 0, "attempt": 0, "row": number, "number": number, "place": 0}
        staged[number] = StagedJob.objects.create(**columns | {"data": json.dumps(number)} | row)
    return [staged[number] for number in sorted(staged)]


def ask(queue: Queue, statement: str, *, order: str = "row") -> list[Any]:
    values = {"write": "'ours'", "queue": f"'{queue.name}'", "attempts": "VALUES (0, 0), (1, 3)",
              "data": "s.data::jsonb", "n": COMMIT.numbers[order]}  # fmt: skip
    values["lane"] = COMMIT.lanes[queue.policy].format(**values)
    values["place"] = COMMIT.places[queue.policy].format(**values)
    with connection.cursor() as cursor:
        cursor.execute(getattr(COMMIT, statement).format(**values))
        return cursor.fetchall() if cursor.description else []


def stored(queue: Queue, statement: str = "store", *, order: str = "row") -> list[Any]:
    """The data of the jobs that the statement makes, in the order of the jobs."""
    before = set(Job.objects.values_list("pk", flat=True))
    ask(queue, statement, order=order)
    return list(Job.objects.in_queue(queue.name).exclude(pk__in=before).order_by("seq").values_list("data", flat=True))


def shown(queue: Queue, statement: str = "count_rows") -> tuple[int, list[int], list[int]]:
    """The answer of a dry run: the number of jobs, the numbers of the refused rows, and of the first others."""
    (count, _), *answers = ask(queue, statement)
    number = dict(StagedJob.objects.values_list("row_id", "number"))
    refused, first = ([number[row] for row, what in answers if what == kind] for kind in ("refused", "shown"))
    return count, refused, first  # type: ignore[return-value]


def sent_before(*ids: UUID) -> None:
    with connection.cursor() as cursor:
        for id in ids:
            cursor.execute("INSERT INTO jobqueue_sentrow (id, seen_at) VALUES (%s, now())", [id])


@pytest.mark.parametrize("statement", ("store", "count"))
def test_only_rows_of_this_write_and_of_the_chosen_attempts_become_jobs(queue, statement):
    stage({}, {"partition": 1, "attempt": 3}, {"write": "another"}, {"attempt": 1}, {"attempt": 3})

    assert (stored(queue) == [1, 2]) if statement == "store" else (ask(queue, "count") == [(2, 2)])


def test_rows_become_jobs_in_their_order_whatever_their_ids_are(queue):
    stage(*({"job": str(id)} for id in (THREE, ONE, TWO)))

    assert stored(queue, order="number") == [1, 2, 3]


def test_rows_that_are_equal_in_their_order_follow_their_places(queue):
    stage({"number": 7, "place": 1}, {"number": 7, "place": 2, "partition": 1, "attempt": 3}, {"number": 7, "place": 3})

    assert stored(queue, order="number") == [1, 2, 3]


def test_of_rows_with_one_id_the_first_becomes_a_job_unless_it_exists(queue):
    JobFactory(id=TWO, queue=queue)
    stage({"job": str(ONE)}, {"job": str(ONE)}, {"job": str(TWO)}, {})

    assert stored(queue) == [1, 4]


def test_of_equal_rows_of_a_file_the_first_ones_were_sent_before(queue):
    sent_before(ONE)
    stage({"identity": ONE.hex}, {"identity": TWO.hex}, {"identity": ONE.hex})

    assert shown(queue) == (2, [], [2, 3])
    assert stored(queue, "store_rows") == [2, 3]
    assert stored(queue, "store_again") == [1, 2, 3]


@pytest.mark.parametrize("statement", ("store_rows", "store_rows_or_refuse", "store_again"))
def test_rows_of_a_file_whose_id_is_a_job_are_left_out(queue, statement):
    JobFactory(id=THREE, queue=queue)
    stage({"identity": ONE.hex, "job": str(THREE)}, {"identity": TWO.hex})

    assert shown(queue) == (1, [], [2])
    assert stored(queue, statement) == [2]


def test_the_first_due_row_of_a_lane_is_not_held(fifo_queue):
    rows: list[dict[str, Any]] = [
        {"singleton_key": "a", "delay": 60.0},
        *[{"singleton_key": "a"}] * 3,
        {"singleton_key": "b"},
    ]
    stage(*(row | {"job": str(UUID(int=9 - place))} for place, row in enumerate(rows)))

    assert stored(fifo_queue) == [1, 2, 3, 4, 5]
    holds = Job.objects.in_queue(fifo_queue.name).order_by("seq").values_list("hold", flat=True)
    assert list(holds) == [Hold.UNTIL, None, Hold.LANE, Hold.LANE, None]


def test_a_dry_run_shows_the_first_rows(fifo_queue):
    stage(*({"identity": uuid4().hex} for _ in range(SHOWN + 2)))

    assert shown(fifo_queue) == (SHOWN + 2, [], list(range(1, SHOWN + 1)))


def test_a_row_has_a_place_unless_a_job_or_an_earlier_row_of_its_key_has_taken_it(exclusive_queue):
    JobFactory(queue=exclusive_queue, singleton_key="taken")
    JobFactory(queue=exclusive_queue, singleton_key="ended", state=JobState.COMPLETED)
    JobFactory(queue=QueueFactory(policy=exclusive_queue.policy), singleton_key="elsewhere")
    keys = ("taken", "ended", "elsewhere", "elsewhere", "free")
    stage(*({"identity": UUID(int=9 - place).hex, "singleton_key": key} for place, key in enumerate(keys)))

    count, refused, first = shown(exclusive_queue)

    assert (count, sorted(refused), first) == (3, [1, 4], [2, 3, 5])
    assert stored(exclusive_queue, "store_rows_or_refuse") == [2, 3, 5]
