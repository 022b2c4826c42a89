"""The checker notices what it is there for: each law broken once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.factories import JobFactory

from .history import History, check

pytestmark = pytest.mark.django_db


class Writer:
    """Writes what handlers would have written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, job: Job, began: float, ended: float | None, *, attempt: int = 1, pid: int = 1) -> None:
        facts: dict[str, Any] = {
            "job": str(job.pk),
            "key": job.singleton_key,
            "attempt": attempt,
            "pid": pid,
            "thread": 1,
        }
        lines = [{"event": "begin", "at": began, **facts}]
        if ended is not None:
            lines.append({"event": "end", "at": ended, **facts})
        with self.path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def ran(tmp_path) -> Writer:
    return Writer(tmp_path / "history.jsonl")


@pytest.fixture
def history(tmp_path) -> History:
    return History(tmp_path / "history.jsonl")


def done(queue, key: str = "a", **columns: Any) -> Job:
    return JobFactory(queue=queue, singleton_key=key, state=JobState.COMPLETED, **columns)


def test_a_good_history_passes(fifo_queue, ran, history):
    first, second, other = done(fifo_queue, attempt=2), done(fifo_queue), done(fifo_queue, "b")
    ran(first, 1.0, None, pid=7)
    history.killed[7] = 1.5
    ran(first, 2.0, 3.0, attempt=2)
    ran(second, 3.0, 4.0)
    ran(other, 1.0, 9.0)

    check(history, fifo_queue.name)


@pytest.mark.parametrize("state", (JobState.CREATED, JobState.ACTIVE, JobState.RETRY, JobState.STOPPED))
def test_a_job_that_did_not_end_well_is_noticed(fifo_queue, history, state):
    JobFactory(queue=fifo_queue, state=state)

    with pytest.raises(AssertionError, match=state):
        check(history, fifo_queue.name)


def test_a_completion_without_a_run_is_noticed(fifo_queue, history):
    done(fifo_queue)

    with pytest.raises(AssertionError, match="ran 0 times"):
        check(history, fifo_queue.name)


def test_a_completion_whose_handler_did_not_end_is_noticed(fifo_queue, ran, history):
    ran(done(fifo_queue), 1.0, None)

    with pytest.raises(AssertionError, match="did not end"):
        check(history, fifo_queue.name)


def test_a_run_after_the_completion_is_noticed(fifo_queue, ran, history):
    job = done(fifo_queue)
    ran(job, 1.0, 2.0)
    ran(job, 3.0, 4.0, attempt=2)

    with pytest.raises(AssertionError, match="ran again"):
        check(history, fifo_queue.name)


def test_attempts_that_do_not_count_up_are_noticed(fifo_queue, ran, history):
    job = done(fifo_queue, attempt=2)
    ran(job, 1.0, 2.0, attempt=3)
    ran(job, 3.0, 4.0, attempt=2)

    with pytest.raises(AssertionError, match="attempts of"):
        check(history, fifo_queue.name)


def test_two_handlers_of_a_key_at_once_are_noticed(fifo_queue, ran, history):
    first, second = done(fifo_queue), done(fifo_queue)
    ran(first, 1.0, 3.0)
    ran(second, 2.0, 4.0)

    with pytest.raises(AssertionError, match="at once"):
        check(history, fifo_queue.name)


def test_a_run_before_the_kill_of_another_of_its_key_is_noticed(fifo_queue, ran, history):
    first, second = done(fifo_queue, attempt=2), done(fifo_queue)
    ran(first, 1.0, None, pid=7)
    history.killed[7] = 3.0
    ran(first, 2.0, 4.0, attempt=2)
    ran(second, 5.0, 6.0)

    with pytest.raises(AssertionError, match="at once"):
        check(history, fifo_queue.name)


def test_jobs_of_a_key_in_the_wrong_order_are_noticed(fifo_queue, ran, history):
    first, second = done(fifo_queue), done(fifo_queue)
    ran(second, 1.0, 2.0)
    ran(first, 3.0, 4.0)

    with pytest.raises(AssertionError, match="order of"):
        check(history, fifo_queue.name)


def test_another_job_between_two_attempts_is_noticed(fifo_queue, ran, history):
    first, second = done(fifo_queue, attempt=2), done(fifo_queue, attempt=2)
    ran(first, 1.0, 2.0)
    ran(second, 3.0, 4.0)
    ran(first, 5.0, 6.0, attempt=2)
    ran(second, 7.0, 8.0, attempt=2)

    with pytest.raises(AssertionError, match="alternate"):
        check(history, fifo_queue.name)


def test_a_run_behind_a_blocked_key_is_noticed(fifo_queue, ran, history):
    failed = JobFactory(queue=fifo_queue, singleton_key="a", state=JobState.FAILED)
    behind = done(fifo_queue)
    ran(failed, 1.0, 2.0)
    ran(behind, 3.0, 4.0)

    with pytest.raises(AssertionError, match="blocks their key"):
        check(history, fifo_queue.name)
