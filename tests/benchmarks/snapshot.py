"""What an old transaction does: while it is open, the rows of 200,000 finished jobs stay in the way of every fetch."""

from __future__ import annotations

import statistics
import time

import psycopg

from tests.benchmarks.lab import DATA, Row, laboratory, note

BATCH = 100
JOBS = 200_000
BASE = "snapshot"


def measure(runs: int, scale: float) -> list[Row]:
    with laboratory([BASE]) as server:
        from django_jobqueue import services
        from django_jobqueue.services import Bookmark

        services.create_queue("plain", using=BASE)
        bookmark = Bookmark()
        times = max(runs, 5) * 4
        _work_off(20 * BATCH, bookmark)
        alone = statistics.median(_batches(times, bookmark))
        note(f"snapshot: alone {alone:.1f} ms")
        with psycopg.connect(server.dsn, dbname=BASE) as old:
            old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            old.execute("SELECT count(*) FROM jobqueue_queue")
            _work_off(int(JOBS * scale), bookmark)
            beside = _batches(times, bookmark)
            note(f"snapshot: beside the old transaction {statistics.median(beside):.1f} ms")
        start, after = time.monotonic(), []
        while time.monotonic() - start < 60:
            after = _batches(times, bookmark)
            if statistics.median(after) <= 1.3 * alone:
                break
        seconds = time.monotonic() - start
        note(f"snapshot: {statistics.median(after):.1f} ms, {seconds:.0f} s after it ended")
    return [
        Row(
            f"100 jobs beside an old transaction and {int(JOBS * scale):,} done",
            statistics.median(beside),
            alone,
            3,
            "ms",
            False,
            beside,
        ),
        Row(f"the same, {seconds:.0f} s after it ended", statistics.median(after), alone, 1.3, "ms", False, after),
    ]


def _work_off(jobs: int, bookmark: object) -> None:
    from django_jobqueue import services

    for _ in range(0, jobs, 10_000):
        services.send_many("plain", [{"data": DATA}] * min(jobs, 10_000), using=BASE)
        while fetched := services.fetch("plain", 500, bookmark=bookmark, using=BASE):  # type: ignore[arg-type]
            services.finish_many([(job, None) for job in fetched], using=BASE)


def _batches(times: int, bookmark: object) -> list[float]:
    """How long it takes to fetch and complete 100 of several hundred, in milliseconds."""
    from django_jobqueue import services

    services.send_many("plain", [{"data": DATA}] * (BATCH * (times + 2)), using=BASE)
    measured = []
    for _ in range(times):
        start = time.perf_counter()
        fetched = services.fetch("plain", BATCH, bookmark=bookmark, using=BASE)  # type: ignore[arg-type]
        services.finish_many([(job, None) for job in fetched], using=BASE)
        measured.append((time.perf_counter() - start) * 1000)
    while fetched := services.fetch("plain", 500, using=BASE):
        services.finish_many([(job, None) for job in fetched], using=BASE)
    return measured
