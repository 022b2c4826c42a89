"""A worker meets jobs whose handler it lacks: they wait for a worker that has it, and keep their lane."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from django_jobqueue import job, services
from django_jobqueue.engine.missing_handlers import announced
from django_jobqueue.models import Job, Queue, Worker
from django_jobqueue.states import FailureReason, Hold, JobState
from django_jobqueue.worker.local import LocalWorker
from django_jobqueue.worker.options import WorkerOptions
from tests.past import ago, reread, rewrite
from tests.waiting import until

from .conftest import ends, sent

pytestmark = pytest.mark.django_db(transaction=True)


def other_worker(queue: Queue, *names: str, **columns: Any) -> Worker:
    """A live worker that announces these handlers."""
    return Worker.objects.create(name="other", queues=[queue.name], handlers=list(names), **columns)


def claimed_by_other(queue: Queue, **options: Any) -> list[Job]:
    return services.fetch(queue.name, worker="other", **options)


def is_left(job: Job) -> bool:
    """Whether it was met, and is fetchable for others."""
    now = reread(job)
    return (now.state, now.hold, now.attempt) == (JobState.RETRY, None, 1)


@pytest.fixture
def grace(settings):
    def set_grace(seconds: float) -> None:
        settings.JOBQUEUE = {**getattr(settings, "JOBQUEUE", {}), "HANDLER_GRACE_SECONDS": seconds}

    return set_grace


@pytest.mark.parametrize(
    ("name", "options", "grouping"),
    (
        ("queue", {}, None),
        ("queue", {"tags": ["a"]}, None),
        ("queue", {"group_key": "G"}, "fill"),
        ("queue", {}, "fill"),
        ("fifo_queue", {"singleton_key": "k"}, None),
        ("singleton_queue", {"singleton_key": "k"}, None),
    ),
    ids=("standard", "tagged", "grouped", "without group", "ordered", "singleton"),
)
def test_a_job_is_left_to_a_worker_that_has_its_handler(request, run, name, options, grouping):  # F57 B41
    queue: Queue = request.getfixturevalue(name)
    job(queue=queue.name, name="here")(lambda: None)
    other_worker(queue, "elsewhere")
    run(queue.name, tags=options.get("tags", ()), grouping=grouping)
    away = sent(queue, name="elsewhere", **options)
    until(lambda: is_left(away), "it is left to the other worker")
    others = {**options, "singleton_key": "l"} if "singleton_key" in options else options
    others = {**others, "group_key": "H"} if "group_key" in options else others
    if grouping is None or "group_key" in options:
        for _ in range(3):  # in turn, so that the worker reads the queue again and again
            ends(sent(queue, name="here", **others))

    assert is_left(away), "the worker does not claim it again"
    now = reread(away)
    assert (now.retry_count, now.crashes, now.reason) == (0, 0, FailureReason.NO_HANDLER)
    assert claimed_by_other(queue, grouping=grouping) == [away], "at once"


def test_the_jobs_behind_it_wait_in_their_lane(fifo_queue, run):  # F57 R028
    ran: list[int] = []

    @job(queue=fifo_queue.name, name="here", unpack=False)
    def here(number: int) -> None:
        ran.append(number)

    other_worker(fifo_queue, "elsewhere")
    first = sent(fifo_queue, 1, name="here", singleton_key="k")
    away = sent(fifo_queue, 2, name="elsewhere", singleton_key="k")
    last = sent(fifo_queue, 3, name="here", singleton_key="k")
    run(fifo_queue.name)
    ends(first)
    until(lambda: is_left(away), "it is left to the other worker")
    again = sent(fifo_queue, 4, name="elsewhere", singleton_key="l")
    then = sent(fifo_queue, 5, name="here", singleton_key="l")
    ends(sent(fifo_queue, 6, name="here", singleton_key="m"))

    assert reread(last).state == reread(then).state == JobState.CREATED
    mine = claimed_by_other(fifo_queue, limit=9)
    assert {one.pk for one in mine} == {away.pk, again.pk}
    services.finish_many([(one, None) for one in mine])
    ends(last), ends(then)
    assert sorted(ran[-2:]) == [3, 5]


def test_a_lane_is_not_handed_over_to_a_worker_that_lacks_the_next_handler(fifo_queue, run):  # F57 B41
    job(queue=fifo_queue.name, name="here")(lambda: None)
    other_worker(fifo_queue, "elsewhere")
    run(fifo_queue.name)
    until(lambda: Worker.objects.filter(handlers__contains=["here"]).exists(), "it is there")
    met = sent(fifo_queue, name="elsewhere", singleton_key="met")
    until(lambda: is_left(met), "it knows what it lacks")

    with transaction.atomic():
        first = sent(fifo_queue, name="here", singleton_key="k")
        away = sent(fifo_queue, name="elsewhere", singleton_key="k")
    ends(first)

    ends(sent(fifo_queue, name="here", singleton_key="m"))
    now = reread(away)
    assert (now.state, now.attempt, now.hold) == (JobState.CREATED, 0, None)


def test_without_such_a_worker_it_waits_and_fails_when_its_time_is_over(fifo_queue, run, grace, caplog):  # F57 B41
    grace(600)
    job(queue=fifo_queue.name, name="here")(lambda: None)
    worker = run(fifo_queue.name)
    gone = sent(fifo_queue, name="hear", singleton_key="k")
    behind = sent(fifo_queue, name="here", singleton_key="k")
    waiting = ends(gone, JobState.RETRY)

    assert (waiting.hold, waiting.attempt, waiting.retry_count) == (Hold.UNTIL, 1, 0)
    assert "No live worker has a handler named 'hear'" in services.why(gone)
    assert "waits for a worker that has its handler" in services.why(behind)
    first = waiting.attempts[0]
    assert (first["outcome"], len(waiting.attempts)) == ("unhandled", 1)

    rewrite(gone, start_after=ago(seconds=1))  # met long ago, by its history
    until(lambda: reread(gone).attempt == 2 and reread(gone).state == JobState.RETRY, "it has time left")
    attempts = [{**entry, "ended": "2020-01-01T00:00:00+00:00"} for entry in reread(gone).attempts]
    rewrite(gone, start_after=ago(seconds=1), attempts=attempts)
    done = ends(gone, JobState.FAILED)

    assert (done.reason, done.error) == ("no_handler", "There is no handler named 'hear'. Did you mean 'here'?")
    assert done.retry_count == 0
    assert reread(behind).state == JobState.CREATED
    assert len([one for one in caplog.records if one.msg.startswith("handler is missing")]) == 1
    assert worker.stop(20)


def test_a_worker_that_starts_takes_the_jobs_that_wait_for_its_handler(queue, run, grace):  # F57 B41
    grace(600)
    job(queue=queue.name, name="here")(lambda: None)
    old = run(queue.name)
    new_job, unnamed = sent(queue, name="new"), sent(queue)
    ends(new_job, JobState.RETRY)
    assert old.stop(20)
    ends(unnamed)
    job(queue=queue.name, name="new")(lambda: None)

    run(queue.name, name="new")

    assert ends(new_job).attempt == 2


def test_a_worker_that_started_meanwhile_is_not_missed(queue, run, grace):
    """It announced its handler after this worker had asked, and looked before the job waited."""
    grace(600)
    job(queue=queue.name, name="here")(lambda: None)
    worker = run(queue.name)
    child = worker.child
    assert worker.stop(20)
    gone = sent(queue, name="gone")
    (mine,) = services.fetch(queue.name, worker=child.identity.name, incarnation=child.identity.incarnation)

    def announce(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if "SET state = u.state" in sql:
            announced_now.append(other_worker(queue, "gone"))
        return result

    announced_now: list[Worker] = []
    with connection.execute_wrapper(announce):
        assert child.missing.give_back([mine]) == []
    assert announced_now
    now = reread(gone)
    assert (now.state, now.hold) == (JobState.RETRY, None)


@pytest.mark.parametrize(
    "columns",
    ({"stopped_at": ago(seconds=0)}, {"stopping_at": ago(seconds=0)}, {"heartbeat_at": ago(seconds=60)}),
    ids=lambda columns: next(iter(columns)),
)
def test_a_worker_that_is_gone_has_no_handlers(queue, run, grace, columns):
    grace(600)
    job(queue=queue.name, name="here")(lambda: None)
    other = other_worker(queue, "elsewhere")
    worker = run(queue.name)
    away = sent(queue, name="elsewhere")
    until(lambda: is_left(away), "it is left to the other worker")

    Worker.objects.filter(pk=other.pk).update(**columns)
    worker.child.poller.refresh_soon()

    until(lambda: reread(away).hold == Hold.UNTIL, "it waits for another worker")


def test_a_worker_of_other_queues_does_not_count(queue, fifo_queue, run, grace):
    grace(600)
    job(queue=queue.name, name="here")(lambda: None)
    other_worker(fifo_queue, "elsewhere")
    run(queue.name)

    assert ends(sent(queue, name="elsewhere"), JobState.RETRY).hold == Hold.UNTIL


def test_jobs_without_a_name_are_left_to_a_worker_with_a_handler_for_them(queue, run):
    job(queue=queue.name, name="one")(lambda: None)
    job(queue=queue.name, name="two")(lambda: None)
    other_worker(queue, announced((queue.name, "")))
    run(queue.name)
    away = sent(queue)

    until(lambda: is_left(away), "it is left to the other worker")


def test_a_stream_takes_jobs_of_every_name(queue, run):
    job(queue=queue.name, name="here")(lambda: None)
    Worker.objects.create(name="stream", queues=[queue.name])
    run(queue.name)
    away = sent(queue, name="whatever")

    until(lambda: is_left(away), "it is left to the stream")


def test_jobs_without_a_name_are_not_for_workers_where_no_handler_is_declared(queue, transactional_db, settings):
    """The queue is read by a loop of the project."""
    other = services.create_queue("by-hand")
    settings.JOBQUEUE = {"QUEUES": {"by-hand": {}}, "POLL_SECONDS": 0.05}
    handler = job(queue=queue.name, name="here")(lambda: None)
    loose, named = sent(other), handler.using(queue="by-hand").send()
    with LocalWorker(WorkerOptions.build(schedules=False), None, {}).start():
        ends(named)
        ends(sent(queue, name="here"))

    assert (reread(loose).state, reread(loose).attempt) == (JobState.CREATED, 0)
