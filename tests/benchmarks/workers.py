"""What ``manage.py runjobs`` reaches with ``@job`` handlers, beside the same work by bare psycopg on the same table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psycopg

from example_project.postgres import Server
from tests.benchmarks import raw, speed
from tests.benchmarks.lab import Row, interleaved, laboratory, medians, note, timed
from tests.benchmarks.marks import Marks
from tests.benchmarks.peers.peer import OURS, TEXT
from tests.benchmarks.peers.stand import Stand, environment, rate, working
from tests.benchmarks.peers.suite import percentile

BASE = "workers"
IDLE = "workers_idle"
ALONE, BULK, SINGLE = "workers_alone", "workers_bulk", "workers_single"
SHALLOW, DEEP = "workers_shallow", "workers_deep"

KEYS = 1_000
BATCH = 1_000  # as BATCH_SIZE is by default
FREE = 1_000  # W6
WAITING = 10_000  # W7


def measure(runs: int, scale: float) -> list[Row]:
    with laboratory([BASE, IDLE, ALONE, BULK, SINGLE, SHALLOW, DEEP]) as server:
        from django_jobqueue import services

        for using in (BASE, ALONE, BULK, SINGLE, SHALLOW, DEEP):
            services.create_queue("plain", using=using)
            services.create_fifo_queue("ordered", using=using)
        bench = _Bench(server, runs, scale)
        found = _sending(bench)
        found += _draining(bench)
        found += _effects(bench)
        found += _waiting(bench)
        found += _beside_blocked(bench)
        found += _beside_many(bench)
        return found


@dataclass
class _Bench:
    server: Server
    runs: int
    scale: float

    def scaled(self, jobs: int, least: int = 100) -> int:
        return max(int(jobs * self.scale), least)

    def dsn(self, using: str) -> str:
        return psycopg.conninfo.make_conninfo(self.server.dsn, dbname=using)

    def runjobs(self, *options: str) -> list[list[str]]:
        return [[sys.executable, "-m", "django", "runjobs", "--no-schedules", *options]]

    def environment(self, using: str, settings: str = "{}") -> dict[str, str]:
        return environment(self.server, using, **OURS.env, BENCH_JOBQUEUE=settings)

    def drain(self, using: str, queue: str, jobs: int, *options: str, settings: str = "{}") -> tuple[Marks, int]:
        """Drain the queue with the real command, and return when each job ran and when all were finished."""
        commands = self.runjobs(f"--queue={queue}", "--drain", *options)
        with working(commands, self.environment(using, settings), jobs) as workers:
            end = workers.wait_until_done(self.dsn(using), "SELECT 1 FROM jobqueue_job WHERE state = 'active' LIMIT 1")
            workers.wait_for_end()
            return workers.marks, end


# --------------------------------------------------------------------------------------------------- W1 and W2: sending


def _sending(bench: _Bench) -> list[Row]:
    from django.db import connections

    from django_jobqueue import services
    from tests.benchmarks.jobs import plain

    single, many = bench.scaled(400), bench.scaled(10_000)
    sender = plain.using(using=BASE)

    def cursor() -> None:
        for _ in range(single):
            with connections[BASE].cursor() as one:
                one.execute(raw.INSERT, raw.insert_params())
                one.fetchone()

    def send() -> None:
        for n in range(single):
            sender.send(n=n, text=TEXT)

    def send_many() -> None:
        item = plain.using().item
        services.send_many("plain", [item(n=n, text=TEXT) for n in range(many)], using=BASE)

    def copy() -> None:
        with psycopg.connect(bench.dsn(BASE), autocommit=True) as connection:
            raw.copy(connection, raw.copy_rows(many))

    def per_second(jobs: int, work: Callable[[], None]) -> Callable[[], float]:
        def run() -> float:
            _execute(BASE, "TRUNCATE jobqueue_job")
            return jobs / timed(work)

        return run

    note("workers: W1 and W2, sending by a handler's send, jobs/s")
    found = interleaved(
        bench.runs,
        {
            "cursor": per_second(single, cursor),
            "send": per_second(single, send),
            "COPY": per_second(many, copy),
            "send_many": per_second(many, send_many),
        },
    )
    return [
        _row("W1 handler.send() with NOTIFY beside a Django cursor's INSERT", "send", "cursor", found, 0.6),
        _row(f"W2 send_many({many:,}) of a handler beside COPY", "send_many", "COPY", found, 0.5),
    ]


# ---------------------------------------------------------------------------------------------- W3 and W5: draining


def _draining(bench: _Bench) -> list[Row]:
    free = bench.scaled(60_000)
    small = 20_000  # whatever the scale: of fewer, most would be the first of their key, and not handed over
    large = bench.scaled(100_000, least=2 * small)

    def by_psycopg(processes: int) -> float:
        _fill(BASE, "plain", range(free))
        dsn = bench.dsn(BASE)
        return free / speed.in_processes("raw worker", "plain", BATCH, free, dsn, bench.server.dsn, processes)

    def by_runjobs(processes: int) -> float:
        _fill(BASE, "plain", range(free))
        marks, end = bench.drain(BASE, "plain", free, f"--processes={processes}")
        _check_completed(BASE, free)
        return rate(marks, processes, end)

    def in_order(jobs: int) -> float:
        _fill(BASE, "ordered", range(jobs), keys=KEYS)
        marks, end = bench.drain(BASE, "ordered", jobs, "--processes=2")
        _check_completed(BASE, jobs)
        _check_order(marks, jobs)
        return rate(marks, 2, end)

    note("workers: W3 and W5, draining, jobs/s")
    found = interleaved(
        bench.runs,
        {
            "raw by 1": lambda: by_psycopg(1),
            "runjobs by 1": lambda: by_runjobs(1),
            "raw by 2": lambda: by_psycopg(2),
            "runjobs by 2": lambda: by_runjobs(2),
            f"ordered {small:,}": lambda: in_order(small),
            f"ordered {large:,}": lambda: in_order(large),
        },
    )
    small_name, large_name = f"ordered {small:,}", f"ordered {large:,}"
    order = f"W5 strict order, {KEYS:,} keys"
    return [
        _row("W3 drain, 1 process, beside psycopg", "runjobs by 1", "raw by 1", found, 0.6),
        _row("W3 drain, 2 processes, beside psycopg", "runjobs by 2", "raw by 2", found, 0.6),
        _row(f"{order}, {small:,} jobs, 2 processes, beside W3", small_name, "runjobs by 2", found, 0.6),
        _row(f"{order}, {large:,} jobs, beside {small:,}", large_name, small_name, found, 0.77),
    ]


def _check_order(marks: Marks, jobs: int) -> None:
    for n in range(jobs - KEYS):
        if marks.ran(n) >= marks.ran(n + KEYS):
            raise AssertionError(f"job {n + KEYS} ran before job {n} of the same key")


# ------------------------------------------------------------------------------------------------- atomic handlers


def _effects(bench: _Bench) -> list[Row]:
    jobs = bench.scaled(5_000)
    _execute(BASE, "CREATE TABLE IF NOT EXISTS bench_effect (n int NOT NULL)")

    def filled() -> None:
        _fill(BASE, "plain", range(jobs), name="bench_effect")
        _execute(BASE, "TRUNCATE bench_effect")

    def by_psycopg() -> float:
        filled()
        return jobs / speed.in_processes("effects", "plain", 1, jobs, bench.dsn(BASE), bench.server.dsn, 2)

    def by_runjobs(*options: str) -> float:
        filled()
        marks, end = bench.drain(BASE, "plain", jobs, "--processes=2", *options)
        _check_completed(BASE, jobs)
        if _scalar(BASE, "SELECT count(*) FROM bench_effect") != jobs:
            raise AssertionError("an effect is missing, or is there twice")
        return rate(marks, 2, end)

    note("workers: atomic handlers, whose work is one INSERT, 2 processes, jobs/s")
    found = interleaved(
        bench.runs,
        {
            "raw": by_psycopg,
            "one thread": lambda: by_runjobs("--concurrency=1"),
            "default": by_runjobs,
        },
    )
    title = "atomic handlers, 2 processes, {}, beside psycopg, batch 1"
    return [
        _row(title.format("1 thread each"), "one thread", "raw", found, 0.7),
        _row(title.format("default threads"), "default", "raw", found, 0.7),
    ]


# ------------------------------------------------------------------------------------------------------ W4: latency


def _waiting(bench: _Bench) -> list[Row]:
    pooled: list[float] = []

    def median(stand: Stand) -> float:
        found = stand.latencies(bench.scaled(100, 20))
        pooled.extend(found)
        return statistics.median(found)

    note("workers: W4, from the return of a send until its handler began, median in ms")
    with Stand(OURS, sys.executable, bench.server, IDLE) as stand:
        stand.install()
        interleaved(bench.runs, {"idle": lambda: median(stand)})
    title = f"W4 send returned → handler began, {len(pooled)} single jobs, {{}}, beside the limit"
    half, most = statistics.median(pooled), percentile(pooled, 99)
    return [
        Row(title.format("p50"), half, 2.5, 1, "ms", False, pooled),
        Row(title.format("p99"), most, 8, 1, "ms", False),
    ]


# ------------------------------------------------------------------------------------- W6: beside what is blocked


def _beside_blocked(bench: _Bench) -> list[Row]:
    """Free jobs in batches of 20, beside many that wait behind keys whose first job failed.

    What is sent in bulk waits from its birth. What is sent singly is put aside by the fetch that first finds it: the
    first look is told apart, because it happens once.
    """
    behind = bench.scaled(200_000)
    for using, send in ((ALONE, None), (BULK, _send_bulk), (SINGLE, _send_singly)):
        _block_keys(using)
        _send(using, "ordered", [(0, "first")])  # it starts the clock of the first look
        if send is not None:
            send(using, behind)
        _execute(using, "VACUUM ANALYZE jobqueue_job")
        note(f"workers: W6, {using} filled")

    def free(using: str, first: int) -> float:
        _send(using, "ordered", ((n, f"free{n}") for n in range(first, FREE + 1)))
        marks, end = bench.drain(using, "ordered", FREE + 1, "--processes=1", settings='{"BATCH_SIZE": 20}')
        return (end - marks.ran(0)) / 1e9

    note("workers: W6, 1,000 free jobs in batches of 20, seconds; first the first look")
    first = interleaved(1, {using: lambda using=using: free(using, 1) for using in (ALONE, BULK, SINGLE)})  # type: ignore[misc]
    found = interleaved(
        bench.runs,
        {using: lambda using=using: free(using, 0) for using in (ALONE, BULK, SINGLE)},  # type: ignore[misc]
    )
    rows = []
    for using, how in ((BULK, "bulk-sent"), (SINGLE, "sent singly")):
        title = f"W6 1,000 free beside {behind:,} blocked, {how}, ÷ alone"
        rows.append(_row(title, using, ALONE, found, 1.3, unit="s", at_least=False))
        rows.append(_row(f"{title}: the first look", using, ALONE, first, None, unit="s", at_least=False))
    return rows


def _block_keys(using: str) -> None:
    from django_jobqueue import services

    heads: list[services.Item] = [
        {"data": {"n": 0, "text": TEXT}, "singleton_key": f"key{i}", "retry_limit": 0} for i in range(KEYS)
    ]
    services.send_many("ordered", heads, using=using)
    blocked = 0
    while jobs := services.fetch("ordered", KEYS, using=using):  # which looks at some hundred lanes at once
        blocked += len(services.finish_many([], [(job, "blocked") for job in jobs], using=using).failed)
    if blocked != KEYS:
        raise AssertionError(f"{blocked} of {KEYS} keys are blocked")


def _send_bulk(using: str, jobs: int) -> None:
    _send(using, "ordered", ((0, f"key{i % KEYS}") for i in range(jobs)))


def _send_singly(using: str, jobs: int) -> None:
    """Each by a send of its own; committed in thousands, because a commit each would only take longer."""
    from django.db import transaction

    from django_jobqueue import services

    for start in range(0, jobs, 1_000):
        with transaction.atomic(using=using):
            for i in range(start, min(start + 1_000, jobs)):
                data = {"n": 0, "text": TEXT}
                services.send("ordered", data, name="bench_ordered", singleton_key=f"key{i % KEYS}", using=using)


# ------------------------------------------------------------------------------------------ W7: beside a backlog


def _beside_many(bench: _Bench) -> list[Row]:
    """How fast the first 10,000 jobs are drained, of 10,000 waiting jobs and of a million."""
    deep = bench.scaled(1_000_000)
    waiting = min(WAITING, deep // 10)
    note(
        f"workers: W7, filled in {timed(lambda: _fill(DEEP, 'plain', (n % (4 * waiting) for n in range(deep)))):.0f} s"
    )

    def first_ones(using: str) -> float:
        if using == SHALLOW:
            _fill(SHALLOW, "plain", range(waiting))
        commands = bench.runjobs("--queue=plain", "--processes=1")
        with working(commands, bench.environment(using), 4 * waiting) as workers:
            workers.wait_for_marks(waiting)
            times = workers.marks.times()[waiting // 5 : waiting]  # without the first, which warm up
        return (len(times) - 1) / (times[-1] - times[0]) * 1e9

    note("workers: W7, draining beside many, jobs/s")
    found = interleaved(bench.runs, {SHALLOW: lambda: first_ones(SHALLOW), DEEP: lambda: first_ones(DEEP)})
    return [_row(f"W7 drain with {deep:,} waiting beside {waiting:,}, 1 process", DEEP, SHALLOW, found, 0.77)]


# ------------------------------------------------------------------------------------------------------------ jobs

_NAMES = {"plain": "bench", "ordered": "bench_ordered"}


def _fill(using: str, queue: str, numbers: Iterable[int], *, keys: int = 0, name: str = "") -> None:
    """Nothing but these jobs in the table, with fresh statistics."""
    _execute(using, "TRUNCATE jobqueue_job")
    _send(using, queue, ((n, f"key{n % keys}" if keys else None) for n in numbers), name)
    _execute(using, "VACUUM ANALYZE jobqueue_job")


def _send(using: str, queue: str, jobs: Iterable[tuple[int, str | None]], name: str = "") -> None:
    from django_jobqueue import services

    items: list[services.Item] = []
    for n, key in jobs:
        items.append({"data": {"n": n, "text": TEXT}, "name": name or _NAMES[queue], "singleton_key": key})
        if len(items) == 10_000:
            services.send_many(queue, items, using=using)
            items = []
    services.send_many(queue, items, using=using)


def _check_completed(using: str, jobs: int) -> None:
    done = _scalar(using, "SELECT count(*) FROM jobqueue_job WHERE state = 'completed'")
    if done != jobs:
        raise AssertionError(f"{done} of {jobs} jobs were completed")


def _execute(using: str, statement: str) -> None:
    from django.db import connections

    with connections[using].cursor() as cursor:
        cursor.execute(statement)


def _scalar(using: str, query: str) -> object:
    from django.db import connections

    with connections[using].cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def _row(
    title: str,
    ours: str,
    beside: str,
    found: dict[str, list[float]],
    bar: float | None,
    *,
    unit: str = "jobs/s",
    at_least: bool = True,
) -> Row:
    middle = medians(found)
    return Row(title, middle[ours], middle[beside], bar, unit, at_least, found[ours])
