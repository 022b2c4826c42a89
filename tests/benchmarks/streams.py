"""How quick a stream is: from the return of a send until its consumer has the job, and with how many at once."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.benchmarks import marks
from tests.benchmarks.lab import Row, connect, interleaved, laboratory, note

BASE = "streams"
QUEUE = "streamed"
LIMIT_MS = 2.5
PAUSE_SECONDS = 0.01  # between sends, so that each finds an idle consumer
PATIENCE_SECONDS = 60.0


def measure(runs: int, scale: float) -> list[Row]:
    sends = max(20, int(100 * scale))
    with laboratory([BASE]) as server, tempfile.TemporaryDirectory() as folder:
        from django_jobqueue import services

        services.create_queue(QUEUE, using=BASE)
        found = marks.create(Path(folder) / "marks", sends * runs)
        context = multiprocessing.get_context("spawn")
        ready, stop = context.Event(), context.Event()
        consumer = context.Process(target=_consume, args=(server.dsn, str(found.path), ready, stop))
        consumer.start()
        try:
            if not ready.wait(PATIENCE_SECONDS):
                raise AssertionError("the consumer does not start")
            return [_latencies(found, sends, runs)]
        finally:
            stop.set()
            consumer.join(PATIENCE_SECONDS)


def _latencies(found: marks.Marks, sends: int, runs: int) -> Row:
    pooled: list[float] = []

    def median() -> float:
        first = len(pooled)
        pooled.extend(_latency(found, n) for n in range(first, first + sends))
        return statistics.median(pooled[first:])

    note("streams: from the return of a send until its delivery, median in ms")
    interleaved(runs, {"stream": median})
    name = f"stream: send returned → delivered, {len(pooled)} single jobs, p50, beside the limit"
    return Row(name, statistics.median(pooled), LIMIT_MS, 1, "ms", False, pooled)


def _latency(found: marks.Marks, n: int) -> float:
    from django_jobqueue import services

    time.sleep(PAUSE_SECONDS)
    services.send(QUEUE, {"n": n}, using=BASE)
    returned = time.time_ns()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not found.ran(n):
        if time.monotonic() > deadline:
            raise AssertionError(f"job {n} was not delivered")
        time.sleep(0.0005)
    return max(0.0, (found.ran(n) - returned) / 1e6)


def _consume(dsn: str, path: str, ready: Event, stop: Event) -> None:
    import os

    connect(dsn, [BASE])
    os.environ[marks.VARIABLE] = path
    from django_jobqueue import services

    with services.stream("bench", queue=QUEUE, capacity=10, using=BASE) as stream:
        ready.set()
        while not stop.is_set():
            for job in stream.get(0.2):
                marks.mark(job.data["n"])
                services.complete(job)
