"""How fast the verbs are beside bare psycopg on the same table, in the same run."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.queues import Queue as ResultQueue
from multiprocessing.synchronize import Barrier
from typing import Any

import psycopg

from tests.benchmarks import raw
from tests.benchmarks.lab import DATA, Row, connect, interleaved, laboratory, medians, note, timed

BASE = "speed"
KEYS = 1_000
PROCESSES = 2


def measure(runs: int, scale: float) -> list[Row]:
    with laboratory([BASE]) as server:
        from django_jobqueue import services

        services.create_queue("plain", using=BASE)
        services.create_fifo_queue("ordered", using=BASE)
        dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=BASE)
        found = _sending(runs, int(400 * scale) or 1)
        found += _bulk(runs, dsn)
        found += _draining(runs, dsn, server.dsn, scale)
        return found


def _sending(runs: int, n: int) -> list[Row]:
    from django.db import connections
    from django.test import override_settings

    from django_jobqueue import services

    def per_second(work: Callable[[], object]) -> float:
        _empty()
        return n / timed(work)

    def cursor() -> None:
        for _ in range(n):
            with connections[BASE].cursor() as open_cursor:
                open_cursor.execute(raw.INSERT, raw.insert_params())
                open_cursor.fetchone()

    def send() -> None:
        for _ in range(n):
            services.send("plain", DATA, using=BASE)

    def quiet() -> float:
        with override_settings(JOBQUEUE={"NOTIFY": False}):
            return per_second(send)

    note("speed: send, one per transaction, jobs/s")
    works = {"cursor": lambda: per_second(cursor), "send": quiet, "send + NOTIFY": lambda: per_second(send)}
    measured = interleaved(runs, works)
    middle = medians(measured)
    beside = middle["cursor"]
    return [
        _row("send() beside a Django cursor's INSERT", "send", measured, beside, 0.9),
        _row("send() with NOTIFY beside the same", "send + NOTIFY", measured, beside, 0.6),
    ]


def _row(title: str, name: str, measured: dict[str, list[float]], beside: float, bar: float) -> Row:
    return Row(title, medians(measured)[name], beside, bar, "jobs/s", runs=measured[name])


def _bulk(runs: int, dsn: str) -> list[Row]:
    from django_jobqueue import services

    n = 10_000

    def ours() -> float:
        _empty()
        items: list[services.Item] = [{"data": DATA} for _ in range(n)]
        return n / timed(lambda: services.send_many("plain", items, using=BASE))

    def copy() -> float:
        _empty()
        rows = raw.copy_rows(n)
        with psycopg.connect(dsn, autocommit=True) as connection:
            return n / timed(lambda: raw.copy(connection, rows))

    note("speed: send_many(10,000), jobs/s")
    measured = interleaved(runs, {"COPY": copy, "send_many": ours})
    middle = medians(measured)
    return [_row("send_many(10,000) beside COPY", "send_many", measured, middle["COPY"], 0.5)]


def _draining(runs: int, dsn: str, server: str, scale: float) -> list[Row]:
    small, large = int(20_000 * scale), int(100_000 * scale)
    free = int(60_000 * scale)

    def drain(work: str, queue: str, jobs: int, batch: int) -> float:
        _fill(queue, jobs)
        return jobs / in_processes(work, queue, batch, jobs, dsn, server)

    note("speed: fetch + complete by two processes, jobs/s")
    measured = interleaved(
        runs,
        {
            "raw": lambda: drain("raw", "plain", free, 500),
            "verbs": lambda: drain("verbs", "plain", free, 500),
            f"ordered {small:,}": lambda: drain("verbs", "ordered", small, 200),
            f"ordered {large:,}": lambda: drain("verbs", "ordered", large, 200),
        },
    )
    middle = medians(measured)
    title = "fetch + complete in batches of 500, 2 processes, beside psycopg"
    found = [_row(title, "verbs", measured, middle["raw"], 0.75)]
    for jobs in (small, large):
        title = f"strict FIFO, {KEYS:,} keys, {jobs:,} jobs, beside unordered"
        found.append(_row(title, f"ordered {jobs:,}", measured, middle["verbs"], 0.6))
    return found


def _fill(queue: str, jobs: int) -> None:
    from django.db import connections

    from django_jobqueue import services

    _empty()
    for start in range(0, jobs, 10_000):
        numbers = range(start, min(start + 10_000, jobs))
        key: Callable[[int], str | None] = (lambda i: f"key{i % KEYS}") if queue == "ordered" else (lambda i: None)
        services.send_many(queue, [{"data": DATA, "singleton_key": key(i)} for i in numbers], using=BASE)
    with connections[BASE].cursor() as cursor:
        cursor.execute("VACUUM ANALYZE jobqueue_job")


def _empty() -> None:
    from django.db import connections

    with connections[BASE].cursor() as cursor:
        cursor.execute("TRUNCATE jobqueue_job")


def in_processes(work: str, queue: str, batch: int, jobs: int, dsn: str, server: str, count: int = PROCESSES) -> float:
    """Seconds from the moment all processes are ready until the last is done."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(count + 1), context.Queue()
    arguments = (work, queue, batch, dsn, server, ready, results)
    processes = [context.Process(target=_worker, args=arguments) for _ in range(count)]
    for process in processes:
        process.start()
    ready.wait()
    start = time.perf_counter()
    done = sum(results.get(timeout=600) for _ in processes)
    seconds = time.perf_counter() - start
    for process in processes:
        process.join()
    if done != jobs:
        raise AssertionError(f"{work} {queue}: {done} of {jobs} jobs were done")
    return seconds


def _worker(
    work: str, queue: str, batch: int, dsn: str, server: str, ready: Barrier, results: ResultQueue[Any]
) -> None:
    connect(server, [BASE])
    from django_jobqueue import services

    if work in raw.WORKS:
        ready.wait()
        results.put(raw.WORKS[work](dsn, batch))
        return

    services.stats(queue, using=BASE)  # connected, and imported
    ready.wait()
    results.put(_drain(queue, batch))


def _drain(queue: str, batch: int) -> int:
    from django_jobqueue import services
    from django_jobqueue.services import Bookmark

    done, bookmark = 0, Bookmark()
    jobs = services.fetch(queue, batch, bookmark=bookmark, using=BASE)
    while jobs:
        finished = services.finish_many([(job, None) for job in jobs], hand_over=True, using=BASE)
        done += len(finished.completed)
        jobs = finished.next
        if len(jobs) < batch:
            jobs += services.fetch(queue, batch - len(jobs), bookmark=bookmark, using=BASE)
    return done
