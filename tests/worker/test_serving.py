"""Which jobs a worker takes, how many, when, and in which order."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import groupby

import pytest
from django.test import override_settings

from django_jobqueue import job, services
from django_jobqueue.exceptions import InvalidOption, QueueNotFound
from django_jobqueue.models import Job, Worker
from django_jobqueue.states import JobState
from django_jobqueue.worker import work
from tests.factories import QueueFactory
from tests.past import reread
from tests.waiting import until

from .conftest import ends, sent

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_worker_takes_a_queue_and_a_handler(queue, run):  # R386
    run(queue.name, lambda number: number + 1)

    assert ends(sent(queue, {"number": 1})).output == 2


def test_a_worker_of_this_process_leaves_when_somebody_asks_it_to(queue, run):  # R389
    run(queue.name, lambda number: number, name="here")
    until(lambda: Worker.objects.filter(name="here", stopped_at=None).exists(), "it is there")

    assert services.stop_worker("here") == 1

    until(lambda: not Worker.objects.filter(stopped_at=None).exists(), "it has left")


def test_a_worker_needs_a_queue_that_exists(db):
    with pytest.raises(QueueNotFound):
        work("nowhere")
    with pytest.raises(InvalidOption, match="handler"):
        work("default", handler=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ({"batch_size": 0}, {"poll_seconds": 0}, {"concurrency": 0}))
def test_options_of_a_worker_are_checked(queue, option):  # R387 R388
    with pytest.raises(InvalidOption, match=next(iter(option))):
        work(queue.name, **option)


def test_no_more_jobs_are_claimed_at_once_than_the_batch_size(queue, run, gate):  # R387
    @job(queue=queue.name)
    def slow() -> None:
        gate.wait()

    for _ in range(20):
        slow.send()
    run(queue.name, concurrency=10, batch_size=5)

    until(lambda: Job.objects.running().count() >= 5, "some run")
    claims = list(Job.objects.running().values_list("assigned_at", flat=True))
    gate.opened.set()
    assert all(claims.count(moment) <= 5 for moment in claims)
    until(lambda: not Job.objects.exclude(state=JobState.COMPLETED).exists(), "all ended")


def test_without_notifications_a_worker_polls(queue, run):  # R388 G13
    @job(queue=queue.name)
    def quick() -> None: ...

    with override_settings(JOBQUEUE={"NOTIFY": False}):
        run(queue.name, poll_seconds=0.3)
        until(lambda: Worker.objects.filter(stopped_at=None).exists(), "it is there")
        ends(quick.send())
        began = time.monotonic()
        ends(quick.send())
        assert time.monotonic() - began < 5


def test_a_notification_wakes_a_worker_long_before_it_polls(queue, run):  # R235
    @job(queue=queue.name)
    def quick() -> None: ...

    run(queue.name, poll_seconds=60)
    ends(quick.send())

    for _ in range(20):
        began = time.monotonic()
        ends(quick.send())
        assert time.monotonic() - began < 5


def test_a_worker_with_tags_takes_only_jobs_that_carry_them(queue, run):
    @job(queue=queue.name)
    def quick() -> None: ...

    run(queue.name, tags=["gpu", "fast"])
    other, half = quick.send(), quick.using(tags=["gpu"]).send()
    mine = quick.using(tags=["fast", "gpu", "more"]).send()

    ends(mine)
    assert other is not None
    assert half is not None
    assert (reread(other).state, reread(half).state) == (JobState.CREATED, JobState.CREATED)


def test_nothing_of_a_paused_queue_begins_until_it_is_resumed(queue, run):
    @job(queue=queue.name)
    def quick() -> None: ...

    services.pause(queue.name)
    other = QueueFactory(name="others")
    job(queue="others", name="other")(lambda: None)
    run([queue.name, "others"])
    held = quick.send()
    ends(sent(other, name="other"))
    assert held is not None
    assert reread(held).state == JobState.CREATED

    services.resume(queue.name)

    ends(held)


def test_a_full_queue_does_not_keep_another_from_its_turn(run, transactional_db):
    order: list[str] = []
    names = ("full", "small")
    for name in names:
        QueueFactory(name=name)
        job(queue=name, name=name)(lambda name=name: order.append(name))
    services.send_many("full", [{"name": "full"} for _ in range(2000)])
    services.send_many("small", [{"name": "small"} for _ in range(5)])

    run(names, concurrency=1)

    until(lambda: len(order) == 2005, "all ended")
    last = max(place for place, name in enumerate(order) if name == "small")
    assert last < 1500  # one batch of the full one may go before, not all of it


def test_jobs_of_a_lane_run_in_order_and_one_at_a_time(fifo_queue, run):  # R001 R002
    order: list[tuple[str, int]] = []
    running: set[str] = set()

    @job(queue=fifo_queue.name, singleton_key=lambda key, n: key)
    def step(key: str, n: int) -> None:
        assert key not in running
        running.add(key)
        order.append((key, n))
        time.sleep(0.001)
        running.discard(key)

    for n in range(30):
        for key in "abc":
            step.send(key=key, n=n)
    run(fifo_queue.name, concurrency=8)

    until(lambda: Job.objects.filter(state=JobState.COMPLETED).count() == 90, "all ended")
    for _, steps in groupby(sorted(order, key=lambda one: one[0]), key=lambda one: one[0]):
        assert [n for _, n in steps] == list(range(30))


def test_priorities_go_first(queue, run, gate):
    order: list[int] = []

    @job(queue=queue.name)
    def note(n: int) -> None:
        order.append(n)

    for n in range(5):
        note.using(priority=n).send(n)
    run(queue.name, concurrency=1)

    until(lambda: len(order) == 5, "all ended")
    assert order == [4, 3, 2, 1, 0]


def test_a_job_that_is_not_due_waits(queue, run):
    @job(queue=queue.name)
    def quick() -> None: ...

    later, now = quick.using(delay=3600).send(), quick.send()
    run(queue.name)

    ends(now)
    assert later is not None
    assert reread(later).state == JobState.CREATED


# ------------------------------------------------------------------------------------------------------------- async


def test_many_async_handlers_run_at_once(queue, run):
    together = threading.Event()
    inside = 0

    @job(queue=queue.name)
    async def meet() -> None:
        nonlocal inside
        inside += 1
        if inside == 50:
            together.set()
        while not together.is_set():
            await asyncio.sleep(0.01)

    jobs = [meet.send() for _ in range(50)]
    run(queue.name, concurrency=2)

    for one in jobs:
        ends(one)
    assert together.is_set()


def test_no_more_async_handlers_run_at_once_than_there_are_places(queue, run):
    """After quick ones, the worker claims far ahead; no job is forgotten."""
    inside = most = 0

    @job(queue=queue.name)
    async def turn(seconds: float) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(seconds)
        inside -= 1

    with override_settings(JOBQUEUE={"ASYNC_CONCURRENCY": 10}):
        run(queue.name, concurrency=2)
        services.send_many(queue.name, [turn.using().item(seconds=0) for _ in range(300)])
        until(lambda: not Job.objects.exclude(state=JobState.COMPLETED).exists(), "the quick ones ended")
        services.send_many(queue.name, [turn.using().item(seconds=0.05) for _ in range(100)])
        until(lambda: not Job.objects.exclude(state=JobState.COMPLETED).exists(), "all ended")

    assert most <= 10


def test_slow_plain_jobs_beside_async_ones_are_not_claimed_and_returned_for_ever(queue, run, gate):
    @job(queue=queue.name)
    async def quick() -> None: ...

    @job(queue=queue.name)
    def slow() -> None:
        gate.wait()

    run(queue.name, concurrency=2)
    ends(quick.send())
    jobs = [slow.send() for _ in range(30)]
    assert gate.reached.wait(10)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 3.5, "three checks of the waiting jobs")
    gate.opened.set()

    assert max(ends(one).attempt for one in jobs) <= 2


def test_claimed_jobs_that_must_wait_go_back_to_others(queue, run, gate):
    """A worker that claimed ahead and is then held up does not keep its loot."""
    first = True

    @job(queue=queue.name)
    def now_and_then() -> None:
        nonlocal first
        if first:
            first = False
            gate.wait()

    @job(queue=queue.name)
    def quick() -> None: ...

    run(queue.name, concurrency=1, name="slow")
    for one in [quick.send() for _ in range(30)]:
        ends(one)
    stuck = now_and_then.using(priority=9).send()
    jobs = [quick.send() for _ in range(10)]
    assert gate.reached.wait(10)
    run(queue.name, concurrency=1, name="other")

    for one in jobs:
        assert ends(one).retry_count == 0
    gate.opened.set()
    assert ends(stuck).attempt == 1


# -------------------------------------------------------------------------------------------------- start and stop


def test_a_worker_has_a_row_while_it_is_there(queue, run):
    worker = run(queue.name, lambda: None, name="mine", concurrency=3)
    until(lambda: Worker.objects.filter(name="mine").exists(), "its row")
    row = Worker.objects.get(name="mine")
    assert (row.queues, row.capacity, row.stopped_at) == ([queue.name], 3, None)

    assert worker.stop(10)

    row.refresh_from_db()
    assert row.stopped_at is not None


def test_a_worker_that_is_stopped_finishes_what_runs_and_takes_no_more(queue, run, gate):  # R389
    @job(queue=queue.name)
    def slow() -> None:
        gate.wait()

    worker = run(queue.name, concurrency=1)
    one, two = slow.send(), slow.send()
    assert gate.reached.wait(10)

    assert worker.stop(0.2) is False
    gate.opened.set()
    assert worker.stop(10) is True

    assert one is not None
    assert two is not None
    assert {reread(one).state, reread(two).state} == {JobState.COMPLETED, JobState.CREATED}


def test_a_queue_that_is_deleted_while_it_is_served_stops_nothing(queue, run):
    QueueFactory(name="fleeting")
    job(queue="fleeting", name="fleeting")(lambda: None)

    @job(queue=queue.name)
    def quick() -> None: ...

    run([queue.name, "fleeting"])
    ends(sent("fleeting", name="fleeting"))

    services.delete_queue("fleeting")

    for _ in range(5):
        ends(quick.send())
