"""Streams under many threads: capacity is kept, each job goes to one stream, and nothing is lost."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest
from django.db import connections

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost, InvalidTransition
from django_jobqueue.models import Job
from django_jobqueue.states import FINAL, RUNNING, JobState
from tests.services.streams import KINDS, Streams
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.concurrency]

PATIENCE = 90.0


class Meter(threading.Thread):
    """Looks all the time how many jobs a worker has: the database's own answer."""

    def __init__(self, worker: str) -> None:
        super().__init__(daemon=True)
        self.worker = worker
        self.most = 0
        self.looks = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.001):
            running = Job.objects.assigned_to(self.worker).running().count()
            self.most = max(self.most, running)
            self.looks += 1
        connections.close_all()


@pytest.fixture(params=KINDS)
def streams(request, transactional_db):
    opened = Streams(KINDS[request.param]())
    yield opened
    opened.end()


def end_at_random(job: Job, chance: random.Random) -> None:
    """As consumers, operators and bad luck do."""
    try:
        match chance.randrange(6):
            case 0 | 1:
                services.complete(job)
            case 2:
                services.fail(job, "again")
            case 3:
                services.cancel(job.pk)
                services.acknowledge_cancellation(job, was_executing=True)
            case 4:
                services.cancel(job.pk)
                services.complete(job)
            case _:
                services.stop(job, "no")
    except (ClaimLost, InvalidTransition):
        pass


def test_eight_threads_never_take_a_stream_over_its_capacity(queue, streams):  # R133 R215 R222 I9
    jobs, capacity = 400, 5
    services.send_many(queue.name, [{"retry_limit": 1} for _ in range(jobs)])
    stream = streams("w", queue=queue.name, capacity=capacity, poll_interval=0.2)
    meter = Meter("w")
    meter.start()
    claims: list[tuple[object, int]] = []

    def consume(number: int) -> None:
        chance = random.Random(number)
        deadline = time.monotonic() + PATIENCE
        try:
            while Job.objects.exclude(state__in=FINAL).exists() and time.monotonic() < deadline:
                for job in streams.get(stream, 0.1):
                    claims.append((job.pk, job.attempt))
                    end_at_random(job, chance)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meter.stopping.set()
    meter.join()

    assert not Job.objects.exclude(state__in=FINAL).exists()
    assert len(claims) == len(set(claims)) >= jobs
    assert 0 < meter.most <= capacity
    until(lambda: stream.free == capacity, "every place is free again")


def test_a_job_is_given_to_one_of_many_streams(queue, streams):  # R136 R194 R233 R234
    jobs, capacity = 300, 7
    opened = [streams(f"w{n}", queue=queue.name, capacity=capacity, poll_interval=0.2) for n in range(4)]
    services.send_many(queue.name, [{} for _ in range(jobs)])
    got: Counter[object] = Counter()
    lock = threading.Lock()

    def consume(number: int) -> None:
        deadline = time.monotonic() + PATIENCE
        try:
            while Job.objects.exclude(state=JobState.COMPLETED).exists() and time.monotonic() < deadline:
                batch = streams.get(opened[number], 0.1)
                assert len(batch) <= capacity
                with lock:
                    got.update(job.pk for job in batch)
                assert {job.assignee for job in batch} <= {f"w{number}"}
                services.finish_many([(job, None) for job in batch])
        finally:
            connections.close_all()

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == jobs
    assert set(got.values()) == {1}


def test_a_consumer_that_stops_reading_loses_nothing(queue, streams):  # R226 R227 R231 F62
    """Streams are closed at any moment, with jobs delivered, undelivered and just being assigned."""
    jobs = 120
    services.send_many(queue.name, [{} for _ in range(jobs)])
    ended: Counter[object] = Counter()
    chance = random.Random(7)
    deadline = time.monotonic() + PATIENCE

    while Job.objects.exclude(state=JobState.COMPLETED).exists():
        assert time.monotonic() < deadline, "it takes too long"
        stream = streams("w", queue=queue.name, capacity=chance.randint(1, 20), poll_interval=0.2)
        for _ in range(chance.randrange(4)):
            for job in streams.get(stream, 0.2):
                services.complete(job)
                ended[job.pk] += 1
        streams.close(stream)
        assert not Job.objects.in_state(*RUNNING).exists()

    assert len(ended) == jobs
    assert set(ended.values()) == {1}
    assert set(Job.objects.values_list("retry_count", flat=True)) == {0}
