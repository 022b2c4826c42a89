"""Workers of two releases side by side: each lacks a handler that the other has."""

from __future__ import annotations

from itertools import count

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job, Worker
from django_jobqueue.states import FailureReason, Hold, JobState
from tests.waiting import until

from .conftest import LANES, ends, send
from .history import check

pytestmark = pytest.mark.django_db(transaction=True)
OLD, NEW = ["jobs", "old_release"], ["jobs", "new_release"]
NAMES = ("lane-work", "old-work", "new-work")
KEYS = 20


def send_round(number: int, names: tuple[str, ...] = NAMES) -> None:
    """A job for each key, whose handler changes from round to round and from key to key."""
    for place in range(KEYS):
        send(names[(number + place) % len(names)], queue=LANES, singleton_key=f"key {place}")


def test_a_rolling_deploy_blocks_no_key_and_keeps_its_order(start, history):  # F57 B41
    old = start(HANDLER_MODULES=OLD)
    send_round(0)
    start(HANDLER_MODULES=NEW)  # until it is there, the jobs of its handler wait
    for number in range(1, 6):
        send_round(number)

    until(lambda: not Job.objects.in_queue(LANES).exclude(state=JobState.COMPLETED).exists(), "all are completed", 60)

    assert set(Job.objects.values_list("retry_count", "crashes", "reason")) == {(0, 0, "")}
    check(history, LANES)  # the order of each key, and that nothing was lost or ran twice
    assert not old.says("no handler:")
    assert old.log.count("handler is missing") == 1, "once per name, not per job"


def test_old_workers_end_under_load_and_no_key_stands_still(start, history):  # F57 B41
    """The senders are of the new release before any worker is, and each old worker ends while jobs are sent."""
    old = [start(HANDLER_MODULES=["jobs"]) for _ in range(2)]
    rounds, names = count(), ("lane-work", "new-work")
    send_round(next(rounds), names)
    while old:
        start(HANDLER_MODULES=NEW)
        send_round(next(rounds), names)
        ending = old.pop()
        ending.tell()
        send_round(next(rounds), names)
        assert ending.ended() == 0

    until(lambda: not Job.objects.in_queue(LANES).exclude(state=JobState.COMPLETED).exists(), "all are completed", 60)

    assert set(Job.objects.values_list("retry_count", "crashes", "reason")) == {(0, 0, "")}
    check(history, LANES)


def test_a_removed_handler_is_waited_for_and_then_its_jobs_fail(start):  # F57 B41
    new = start("--name", "new", HANDLER_MODULES=NEW, HANDLER_GRACE_SECONDS=1.5)
    job, behind = send("old-work", queue=LANES), send("lane-work", queue=LANES)

    waiting = ends(job, JobState.RETRY)

    assert (waiting.hold, waiting.reason, waiting.retry_count) == (Hold.UNTIL, FailureReason.NO_HANDLER, 0)
    assert "No live worker has a handler named 'old-work'; worker 'new' lacks it. It fails at" in services.why(job)
    done = ends(job, JobState.FAILED)
    assert (done.reason, done.error) == (
        "no_handler",
        "There is no handler named 'old-work'. Did you mean 'lane-work'?",
    )
    assert (done.attempt, done.retry_count) == (2, 0), "it was claimed twice: when it was met, and when it failed"
    assert (Job.objects.get(pk=behind.pk).state, new.log.count("handler is missing")) == (JobState.CREATED, 1)


def test_drain_ends_and_says_which_jobs_are_left(start):
    left, done = send("old-work", queue=LANES), send("work")

    worker = start("--drain", HANDLER_MODULES=NEW, wait=False)

    assert worker.ended() == 0
    ends(done, JobState.COMPLETED)
    assert worker.says("jobs are left: queue lanes, jobs 1: There is no handler named 'old-work'")
    assert Job.objects.get(pk=left.pk).hold == Hold.UNTIL
    start("--drain", HANDLER_MODULES=OLD, wait=False)  # it has the handler, and does not wait until the job is due
    ends(left, JobState.COMPLETED)


def test_a_plain_worker_announces_what_it_serves_and_runs(start):
    start(HANDLER_MODULES=NEW)

    (row,) = Worker.objects.all()
    until(lambda: Worker.objects.get(pk=row.pk).handlers, "it announces its handlers")
    row.refresh_from_db()
    assert {"faults", "lanes"} <= set(row.queues)
    assert {"lane-work", "new-work"} <= set(row.handlers)
    assert "old-work" not in row.handlers
