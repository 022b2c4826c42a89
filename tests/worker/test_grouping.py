"""A worker that reads by group: the jobs of a group run one after another, in their order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_jobqueue import job, services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.grouping import Grouping
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from django_jobqueue.worker import work
from django_jobqueue.worker.executor import Executor
from django_jobqueue.worker.outcomes import NotBegun, Recorded
from django_jobqueue.worker.slots import Slots
from tests.waiting import PATIENCE, until

from .conftest import ends, sent

pytestmark = pytest.mark.django_db(transaction=True)


class Log:
    """Which jobs of each group began, and whether two ever ran at once."""

    def __init__(self) -> None:
        self.began: defaultdict[str, list[int]] = defaultdict(list)
        self.running: defaultdict[str, int] = defaultdict(int)
        self.threads: defaultdict[str, set[int]] = defaultdict(set)
        self.overlapped = False

    def enter(self, group: str, n: int) -> None:
        self.running[group] += 1
        self.overlapped |= self.running[group] > 1
        self.began[group].append(n)
        self.threads[group].add(threading.get_ident())

    def leave(self, group: str) -> None:
        self.running[group] -= 1


def send_groups(queue, groups: int, size: int) -> None:
    items: list[services.Item] = [
        {"data": {"group": f"g{g}", "n": n}, "group_key": f"g{g}"} for n in range(size) for g in range(groups)
    ]
    services.send_many(queue.name, items)


def all_end(seconds: float = 40.0) -> None:
    until(lambda: not Job.objects.exclude(state=JobState.COMPLETED).exists(), "all ended", seconds)


@pytest.mark.parametrize("grouping", Grouping.values)
@pytest.mark.parametrize("kind", ("plain", "async"))
def test_jobs_of_a_group_run_in_order_and_one_at_a_time(queue, run, grouping, kind):  # R033 R034 R041
    log = Log()

    if kind == "plain":

        @job(queue=queue.name)
        def handle(group: str, n: int) -> None:
            log.enter(group, n)
            time.sleep(0.002)
            log.leave(group)

    else:

        @job(queue=queue.name)
        async def handle(group: str, n: int) -> None:
            log.enter(group, n)
            await asyncio.sleep(0.002)
            log.leave(group)

    send_groups(queue, 5, 12)
    Job.objects.update(name=handle.name)
    run(queue.name, grouping=grouping, concurrency=4)

    all_end()
    assert dict(log.began) == {f"g{g}": list(range(12)) for g in range(5)}
    assert not log.overlapped


@pytest.mark.parametrize("kind", ("plain", "async", "atomic"))
def test_after_a_failure_the_rest_of_its_group_waits_for_its_retry(queue, run, kind):  # B19 R067
    began: list[int] = []
    others: list[int] = []

    def work_on(group: str, n: int) -> None:
        (began if group == "g0" else others).append(n)
        if group == "g0" and n == 1 and began.count(1) < 3:
            raise ValueError("not yet")

    if kind == "async":

        @job(queue=queue.name)
        async def handle(group: str, n: int) -> None:
            work_on(group, n)

    else:

        @job(queue=queue.name, atomic=kind == "atomic")
        def handle(group: str, n: int) -> None:
            work_on(group, n)

    send_groups(queue, 2, 5)
    Job.objects.update(name=handle.name)
    run(queue.name, grouping="fill", concurrency=2)

    all_end()
    assert began == [0, 1, 1, 1, 2, 3, 4]
    assert others == [0, 1, 2, 3, 4]
    assert dict(Job.objects.filter(group_key="g0").values_list("data__n", "retry_count")) == {
        0: 0, 1: 2, 2: 0, 3: 0, 4: 0
    }  # fmt: skip


def test_a_group_whose_job_died_waits_while_others_go_on(queue, run):  # R067
    @job(queue=queue.name, retry_limit=0)
    def handle(group: str, n: int) -> None:
        if group == "g0" and n == 1:
            raise ValueError("never")

    for n in range(3):
        for group in ("g0", "g1"):
            handle.send(group=group, n=n)
    Job.objects.filter(data__group="g0").update(group_key="g0")
    Job.objects.filter(data__group="g1").update(group_key="g1")
    run(queue.name, grouping="fill")

    until(lambda: Job.objects.filter(state=JobState.COMPLETED).count() == 4, "the others ended")
    ends(Job.objects.get(data__n=1, group_key="g0"), JobState.FAILED)
    last = Job.objects.get(data__n=2, group_key="g0")
    until(lambda: services.get_job(last.pk).state in (JobState.RETRY, JobState.CREATED), "the last waits")
    services.skip(Job.objects.get(state=JobState.FAILED).pk, reason="never")
    ends(last)


def test_what_waits_behind_a_slow_job_of_its_group_goes_back(queue, run, gate):  # R036
    @job(queue=queue.name)
    def handle(group: str, n: int) -> None:
        if n == 0:
            gate.wait()

    send_groups(queue, 1, 3)
    Job.objects.update(name=handle.name)
    run(queue.name, grouping="fill", concurrency=4)

    gate.reached.wait(20)
    until(lambda: Job.objects.running().count() == 1, "the others are back")
    assert Job.objects.filter(state=JobState.COMPLETED).count() == 0
    gate.opened.set()
    all_end()


def test_plain_and_grouped_workers_share_a_queue(queue, run):  # R068
    ran: list[int] = []

    @job(queue=queue.name)
    def handle(group: str, n: int) -> None:
        ran.append(n)

    send_groups(queue, 10, 20)
    Job.objects.update(name=handle.name)
    run(queue.name, grouping="round_robin")
    run(queue.name)

    all_end()
    assert len(ran) == 200


@override_settings(JOBQUEUE={"NOTIFY": False})
def test_a_group_goes_on_at_once_when_a_job_ended(queue, run, gate):  # R033
    """Not by polling: the worker looks for the second job in vain, and would look again in an hour."""

    @job(queue=queue.name)
    def handle(group: str, n: int) -> None:
        gate.wait()

    send_groups(queue, 1, 2)
    Job.objects.update(name=handle.name)
    worker = run(queue.name, grouping="head", poll_seconds=3600)
    assert gate.reached.wait(PATIENCE)
    until(lambda: worker.child.prefetcher.seconds_until_next_look() > 0, "the worker has looked for the second job")
    assert not Job.objects.filter(state=JobState.COMPLETED).exists()

    gate.opened.set()

    all_end()


@pytest.fixture
def executor(transactional_db: None) -> Iterator[Executor]:
    """The threads of a worker without its loop, which would return jobs that wait behind a slow one."""
    made = Executor(1, Slots(1), threading.Event(), "default")
    made.start()
    yield made
    made.stop()
    for thread in made._threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_jobs_behind_an_atomic_one_that_lost_its_claim_are_not_begun(queue, executor, gate):  # B29 R067
    """Another worker has claimed them too: they would run beside, or before, the job ahead of them."""
    began: list[int] = []

    @job(queue=queue.name, atomic=True)
    def handle(group: str, n: int) -> None:
        began.append(n)
        gate.wait()

    send_groups(queue, 1, 3)
    Job.objects.update(name=handle.name)
    jobs = services.fetch(queue.name, 3, grouping="fill", worker="silent")
    for one in jobs:
        one.deadline = one.begin_by = time.monotonic() + 600
    executor.begin_group([(one, handle) for one in jobs])
    assert gate.reached.wait(PATIENCE)

    services.mark_worker_unresponsive("silent")
    again = services.fetch(queue.name, 3, grouping="fill", worker="other")
    assert again == jobs
    gate.opened.set()

    until(lambda: len(executor.results) == 3, "all three have ended")
    assert began == [0]
    assert [(one, ending) for one, ending, _ in executor.results] == [
        (jobs[0], Recorded(lost=True)), (jobs[1], NotBegun()), (jobs[2], NotBegun())
    ]  # fmt: skip
    services.finish_many([(one, None) for one in again])
    assert set(Job.objects.values_list("state", "assignee")) == {(JobState.COMPLETED, "other")}


def test_a_job_that_names_no_handler_keeps_its_group_waiting(queue, run):  # R067
    @job(queue=queue.name)
    def handle() -> None: ...

    bad = sent(queue, name="missing", group_key="A")
    behind = sent(queue, name=handle.name, group_key="A")
    other = sent(queue, name=handle.name, group_key="B")
    run(queue.name, grouping="fill")

    ends(other)
    assert ends(bad, JobState.RETRY).reason == "no_handler"
    assert services.get_job(behind.pk).state in (JobState.RETRY, JobState.CREATED, JobState.ACTIVE)


def test_an_ordered_queue_is_served_beside(queue, fifo_queue, run):  # B19
    ran: list[str] = []

    def handle(name: str) -> None:
        ran.append(name)

    for n in range(3):
        sent(fifo_queue, {"name": f"f{n}"}, singleton_key="k")
        sent(queue, {"name": f"s{n}"}, group_key="k")
    run([queue.name, fifo_queue.name], handle, grouping="fill")

    all_end()
    assert [name for name in ran if name[0] == "f"] == ["f0", "f1", "f2"]
    assert [name for name in ran if name[0] == "s"] == ["s0", "s1", "s2"]


def test_an_unknown_grouping_is_refused(queue):
    with pytest.raises(InvalidOption, match="grouping"):
        work(queue.name, grouping="all")
    with pytest.raises(CommandError, match="--grouping"):
        call_command("runjobs", "--grouping", "all", stderr=StringIO())
