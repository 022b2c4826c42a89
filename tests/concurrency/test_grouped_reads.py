"""Several grouped readers at once, some of them rolled back: no group is shared, and nothing overtakes."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobqueue import services
from django_jobqueue.grouping import Grouping
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import JobState
from tests.services.lives import sent
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.concurrency]

PATIENCE = 60.0


def send_groups(queue: Queue, groups: int, size: int) -> None:
    items: list[services.Item] = [{"data": n, "group_key": f"g{g}"} for n in range(size) for g in range(groups)]
    services.send_many(queue.name, items)


class Watch:
    """What readers were given, in the order in which they had it: under one lock, so that it is an order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holder: dict[str, int] = {}  # which reader holds each group
        self.order: defaultdict[str, list[int]] = defaultdict(list)
        self.problems: list[str] = []

    def took(self, reader: int, jobs: list[Job]) -> None:
        with self.lock:
            for job in jobs:
                holder = self.holder.setdefault(job.group_key, reader)
                if holder != reader:
                    self.problems.append(f"{job.group_key} was given to {reader} while {holder} had it")
                self.order[job.group_key].append(job.data)

    def drops(self, jobs: list[Job]) -> None:
        """Before the jobs end: another may have the group as soon as they have."""
        with self.lock:
            for group in {job.group_key for job in jobs}:
                self.holder.pop(group, None)


@pytest.mark.parametrize("grouping", Grouping.values)
def test_readers_never_share_or_overtake_within_a_group(queue, race, grouping):  # R033 R036 R056 R234
    groups, size, readers = 12, 15, 4
    send_groups(queue, groups, size)
    watch = Watch()
    numbers = iter(range(readers))

    def reader() -> None:
        number = next(numbers)
        chance = random.Random(number)
        deadline = time.monotonic() + PATIENCE
        while Job.objects.exclude(state=JobState.COMPLETED).exists():
            assert time.monotonic() < deadline, "it takes too long"
            if chance.random() < 0.3:
                with transaction.atomic():
                    services.fetch(queue.name, chance.randint(1, 8), grouping=grouping)
                    transaction.set_rollback(True)
                continue
            jobs = services.fetch(queue.name, chance.randint(1, 8), grouping=grouping)
            watch.took(number, jobs)
            watch.drops(jobs)
            services.finish_many([(job, None) for job in jobs])

    race(readers, reader)

    assert watch.problems == []
    assert dict(watch.order) == {f"g{g}": list(range(size)) for g in range(groups)}


def test_two_fill_readers_get_different_groups(queue, race):  # R034 R046 R056
    send_groups(queue, 2, 3)

    first, second = race(2, lambda: services.fetch(queue.name, 3, grouping="fill"))

    assert {job.group_key for job in first} != {job.group_key for job in second}
    assert [job.data for job in first] == [job.data for job in second] == [0, 1, 2]


@pytest.mark.parametrize("grouping", Grouping.values)
def test_who_finds_a_group_already_read_goes_on_to_the_next(queue, race, grouping):  # R056
    """Between looking for groups and locking one, another reader takes it, and is done."""
    send_groups(queue, 2, 3)
    chose, took = threading.Event(), threading.Event()

    def slow() -> list[Job]:
        def wait_before_locking(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            if "pg_try_advisory_xact_lock" in sql and not chose.is_set():
                chose.set()
                assert took.wait(PATIENCE)
            return execute(sql, *rest)

        with connection.execute_wrapper(wait_before_locking):
            return services.fetch(queue.name, 1, grouping=grouping)

    def quick() -> list[Job]:
        assert chose.wait(PATIENCE)
        try:
            return services.fetch(queue.name, 1, grouping=grouping)
        finally:
            took.set()

    second, first = race(2, slow, quick)

    assert [(job.group_key, job.data) for job in (*first, *second)] == [("g0", 0), ("g1", 0)]


def test_heads_are_given_out_once(queue, race):  # R056 R234
    send_groups(queue, 40, 3)

    found = race(4, lambda: services.fetch(queue.name, 10, grouping="head"))

    keys = [job.group_key for jobs in found for job in jobs]
    assert len(keys) == len(set(keys))
    assert {job.data for jobs in found for job in jobs} == {0}


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_group_is_cut_at_a_job_that_somebody_has_locked(queue, race, grouping):  # R054
    send_groups(queue, 1, 4)
    third = Job.objects.get(data=2)
    locked, release = threading.Event(), threading.Event()

    def lock() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=third.pk)
            locked.set()
            assert release.wait(PATIENCE)

    def read() -> list[int]:
        assert locked.wait(PATIENCE)
        try:
            return [job.data for job in services.fetch(queue.name, 10, grouping=grouping)]
        finally:
            release.set()

    _, got = race(2, lock, read)

    assert got == ([0] if grouping == "head" else [0, 1])


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_group_that_another_transaction_reads_is_passed_over(queue, race, grouping):  # R053 R054 R056
    send_groups(queue, 2, 2)
    has_read, release = threading.Event(), threading.Event()

    def first() -> list[Any]:
        with transaction.atomic():
            jobs = services.fetch(queue.name, 1, grouping=grouping)
            has_read.set()
            assert release.wait(PATIENCE)
            transaction.set_rollback(True)
        return [job.group_key for job in jobs]

    def second() -> list[Any]:
        assert has_read.wait(PATIENCE)
        try:
            return [job.group_key for job in services.fetch(queue.name, 10, grouping=grouping)]
        finally:
            release.set()

    one, other = race(2, first, second)

    assert (one, set(other)) == (["g0"], {"g1"})
    assert Job.objects.get(group_key="g0", data=0).state == JobState.CREATED


def test_an_earlier_job_that_is_committed_late_does_not_run_beside_a_later_one(queue, race):  # R036 B28
    was_sent, commit = threading.Event(), threading.Event()

    def late() -> None:
        with transaction.atomic():
            sent(queue, "early", group_key="A")
            was_sent.set()
            assert commit.wait(PATIENCE)

    def reader() -> list[Job]:
        assert was_sent.wait(PATIENCE)
        sent(queue, "late", group_key="A")
        jobs = services.fetch(queue.name, 10, grouping="fill")
        commit.set()
        until(lambda: Job.objects.count() == 2, "it is committed")
        return jobs + services.fetch(queue.name, 10, grouping="fill")

    _, got = race(2, late, reader)

    assert [job.data for job in got] == ["late"]
    services.complete(got[0])
    assert [job.data for job in services.fetch(queue.name, 10, grouping="fill")] == ["early"]


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_group_being_read_is_passed_over_even_if_an_earlier_job_appears_in_it(queue, race, grouping):  # R036 R056
    """The second reader sees another head than the first, and its row is not locked: only the group's lock tells it."""
    was_sent, has_read, was_committed, has_looked = (threading.Event() for _ in range(4))

    def sender() -> None:
        with transaction.atomic():
            sent(queue, "early", group_key="A")
            was_sent.set()
            assert has_read.wait(PATIENCE)
        was_committed.set()

    def first() -> list[Any]:
        assert was_sent.wait(PATIENCE)
        sent(queue, "late", group_key="A")
        with transaction.atomic():
            jobs = services.fetch(queue.name, 10, grouping=grouping)
            has_read.set()
            assert has_looked.wait(PATIENCE)
        return [job.data for job in jobs]

    def second() -> list[Any]:
        assert was_committed.wait(PATIENCE)
        try:
            return [job.data for job in services.fetch(queue.name, 10, grouping=grouping)]
        finally:
            has_looked.set()

    _, one, other = race(3, sender, first, second)

    assert (one, other) == (["late"], [])


def test_plain_readers_beside_grouped_ones_lose_and_double_nothing(queue, race):  # R068 R381
    send_groups(queue, 10, 20)
    seen: list[Any] = []

    def reader(grouping: str | None) -> None:
        deadline = time.monotonic() + PATIENCE
        while Job.objects.exclude(state=JobState.COMPLETED).exists():
            assert time.monotonic() < deadline, "it takes too long"
            jobs = services.fetch(queue.name, 3, grouping=grouping)
            seen.extend(job.pk for job in jobs)
            services.finish_many([(job, None) for job in jobs])

    race(4, lambda: reader("fill"), lambda: reader(None), lambda: reader("round_robin"), lambda: reader("head"))

    assert len(seen) == len(set(seen)) == 200


def test_failing_jobs_never_let_others_overtake(queue, race):  # B19 R067
    """Some attempts fail: what came behind them in their batch is not finished, and comes again after them."""
    groups, size = 6, 10
    send_groups(queue, groups, size)
    Job.objects.update(retry_limit=None)
    ended: defaultdict[str, list[int]] = defaultdict(list)
    lock = threading.Lock()

    def reader() -> None:
        chance = random.Random(threading.get_ident())
        deadline = time.monotonic() + PATIENCE
        while Job.objects.exclude(state=JobState.COMPLETED).exists():
            assert time.monotonic() < deadline, "it takes too long"
            failed: set[str] = set()
            for job in services.fetch(queue.name, 5, grouping="fill", worker=str(threading.get_ident())):
                if job.group_key in failed:
                    continue
                if chance.random() < 0.25:
                    failed.add(job.group_key)
                    services.fail(job, "again")
                else:
                    with lock:
                        ended[job.group_key].append(job.data)
                    services.complete(job)

    race(3, reader)

    assert dict(ended) == {f"g{g}": list(range(size)) for g in range(groups)}
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM jobqueue_job WHERE grouped AND state <> 'completed'")
        assert cursor.fetchone() == (0,)
