"""The archive is killed at every step, and two run at once, while workers work: nothing is lost, nothing is twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from django.db import connections

from django_jobqueue import services
from django_jobqueue.models import Job

from .driver import STEPS
from .processes import PATIENCE, Driver


class Load:
    """A sender and a worker that are never done. They rest in between, because the drivers need the processors."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.sent: list[UUID] = []
        self.done = 0
        self.errors: list[BaseException] = []
        self.threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._send, self._work)]

    def _guarded(self, work) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)
        finally:
            connections.close_all()

    def _send(self) -> None:
        number = 0
        while not self.over.wait(0.3):
            number += 1
            items: list[services.Item] = [{"singleton_key": str(n % 7), "data": number} for n in range(10)]
            ids = services.send_many("orders", items) + services.send_many("work", [{"data": n} for n in range(10)])
            self.sent += [id for id in ids if id is not None]

    def _work(self) -> None:
        """Now and then one fails for good: it blocks its key, or is archived as failed."""
        while not self.over.wait(0.1):
            for queue in ("orders", "work"):
                jobs = services.fetch(queue, limit=50)
                failed = [(job, "no luck") for job in jobs if self.done % 97 == 0 and job.singleton_key in ("", "6")]
                completed = [(job, None) for job in jobs if job not in {one for one, _ in failed}]
                self.done += len(services.finish_many(completed, failed).completed)


@contextmanager
def load() -> Iterator[Load]:
    services.create_fifo_queue("orders")
    services.create_queue("work", retry_limit=0)
    services.create_queue("more", retry_limit=0)
    services.send_many("more", [{"data": "x" * 500} for _ in range(2_500)])  # more than one batch of deletes
    services.finish_many([(job, None) for job in services.fetch("more", limit=2_500)])
    made = Load()
    made.sent += Job.objects.in_queue("more").values_list("pk", flat=True)
    for thread in made.threads:
        thread.start()
    try:
        yield made
    finally:
        made.over.set()
        for thread in made.threads:
            thread.join(PATIENCE)
    assert not made.errors, made.errors


def in_lake(spark, lake) -> Counter[str]:
    from django_jobqueue.pipeline import read_lake

    return Counter(row.id for row in read_lake(spark, lake).select("id").collect())


def nothing_is_missing(spark, lake, sent: list[UUID]) -> None:
    """The live ones first: what is deleted after that look is in the lake by the next one."""
    live = {str(id) for id in Job.objects.values_list("pk", flat=True)}
    archived = in_lake(spark, lake)
    assert {str(id) for id in sent} <= live | archived.keys()
    assert set(archived.values()) <= {1}


def marks(lake) -> list[set[str]]:
    return [{one.name for one in run.glob("_[SVD]*")} - {"_SUCCESS"} for run in sorted(Path(lake).glob("run=*"))]


def test_killed_anywhere_and_two_at_once_nothing_is_lost_and_nothing_is_twice(spark, lake, tmp_path):
    with load() as work:
        for step in STEPS:
            so_far = list(work.sent)
            before = Job.objects.in_queue("more").count()

            assert Driver(tmp_path, lake, step).killed(), step

            last = marks(lake)[-1]
            assert last == ({"_STARTED"} if step in STEPS[:2] else {"_STARTED", "_VERIFIED"}), step
            if step in ("writing", "written"):
                assert Job.objects.in_queue("more").count() == before, "nothing may be deleted yet"
            nothing_is_missing(spark, lake, so_far)
        both = [Driver(tmp_path, lake), Driver(tmp_path, lake)]
        answers = [driver.answer() for driver in both]
        assert [len(answer["resumed_runs"]) for answer in answers if answer["resumed_runs"]] == [1]
        nothing_is_missing(spark, lake, list(work.sent))
    assert work.done > 0

    from django_jobqueue.pipeline import archive_jobs, audit_order

    archive_jobs(spark=spark, lake=lake, older_than=0)
    live = {str(id) for id in Job.objects.values_list("pk", flat=True)}
    archived = in_lake(spark, lake)
    assert live | archived.keys() == {str(id) for id in work.sent}
    assert live & archived.keys() == set()
    assert set(archived.values()) == {1}
    assert all("_DONE" in run for run in marks(lake))
    assert audit_order(spark=spark, lake=lake).breaches == []
