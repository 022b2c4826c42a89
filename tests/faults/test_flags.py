"""The flags of the real command that select jobs."""

from __future__ import annotations

import pytest

from django_jobqueue.models import Worker
from django_jobqueue.states import JobState
from tests.past import reread

from .conftest import LANES, ends, send

pytestmark = pytest.mark.django_db(transaction=True)


def test_only_the_queues_that_were_named_are_served(start):
    worker = start("--queue", LANES)
    other = send("work")
    mine = send("lane-work", queue=LANES)

    ends(mine, JobState.COMPLETED)

    assert reread(other).state == JobState.CREATED
    assert worker.rows()[0].queues == [LANES]


def test_only_jobs_with_all_of_the_tags_are_taken(start):
    worker = start("--tags", "gpu, fast")
    others = [send("work"), send("work", tags=["gpu"])]
    mine = send("work", tags=["fast", "gpu"])

    ends(mine, JobState.COMPLETED)

    assert {reread(other).state for other in others} == {JobState.CREATED}
    assert worker.rows()[0].tags == ["gpu", "fast"]


def test_each_child_has_a_row_with_what_it_is(start):
    start("--concurrency", "3", "--name", "mine", processes=2)

    rows = list(Worker.objects.order_by("name"))

    assert [row.name for row in rows] == ["mine/1", "mine/2"]
    assert {row.capacity for row in rows} == {3}
    assert all(row.has_session_lock and row.host and row.pid and row.version for row in rows)


def test_drain_leaves_what_is_not_due(start):
    done, later = send("work"), send("work", delay=3600)

    worker = start("--drain", wait=False)

    assert worker.ended() == 0
    assert (reread(done).state, reread(later).state) == (JobState.COMPLETED, JobState.CREATED)


def test_drain_of_nothing_leaves_at_once(start):
    assert start("--drain", wait=False).ended() == 0


@pytest.mark.parametrize(
    "flags",
    (("--name", "x" * 300), ("--name", ""), ("--database", "nowhere"), ("--health-port", "99999")),
    ids=lambda flags: f"{flags[0]} {flags[1][:8]}",
)
def test_what_could_never_work_is_refused_in_one_sentence(start, flags):
    """These would else be noticed only inside, again and again."""
    worker = start(*flags, wait=False)

    assert worker.ended(15) != 0
    assert "Traceback" not in worker.log
    assert flags[0].strip("-").split("-")[0] in worker.log
