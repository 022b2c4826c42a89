"""The pipeline on Spark, beside Spark's own JDBC source and bare COPY: ``make bench-spark``.

JDBC needs Debian's ``libpostgresql-jdbc-java``. It is given the same pages to read as our source, the same columns and
the same number of partitions; by its own ``partitionColumn`` it would read the whole table once per partition.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from tests.benchmarks import processor_time, raw
from tests.benchmarks.lab import Row, interleaved, laboratory, medians, note, report, timed
from tests.benchmarks.peers.stand import rate
from tests.benchmarks.workers import _Bench, _send

JAR = Path("/usr/share/java/postgresql.jar")
PAST, LIVE = "spark_past", "spark_live"
PARTITIONS = 4
JOBS, DRAINED = 1_000_000, 60_000

FINISHED = """
INSERT INTO jobqueue_job (id, queue_id, policy, name, data, output, state, attempt, tags, assignee, created_at,
    start_after, started_at, assigned_at, finalized_at)
SELECT gen_random_uuid(), 'past-' || n %% 5, 'standard', 'shop.pack',
    jsonb_build_object('order', n, 'text', repeat('x', 80)), '{"done": true}', 'completed', 1, '{red,blue}', 'w1',
    at, at, at + interval '1 second', at + interval '1 second', at + interval '2 seconds'
FROM generate_series(1, %(jobs)s) n
CROSS JOIN LATERAL (SELECT now() - interval '10 days' + n %% 400000 * interval '1 second' AS at) t
"""


@contextmanager
def spark(jars: bool = True) -> Iterator[Any]:
    from django_jobqueue.pipeline import spark_session

    config = {"spark.driver.memory": "2g", **({"spark.jars": str(JAR)} if jars else {})}
    with spark_session(config=config) as session:
        yield session


def execute(using: str, sql: str, params: Any = None) -> None:
    from django.db import connections

    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)


# --------------------------------------------------------------------------------------------------------- the source


def source(bench: _Bench) -> list[Row]:
    """Into partitioned Parquet, and what reading does to a worker that drains a queue beside it."""
    jobs = bench.scaled(JOBS)
    for using in (PAST, LIVE):
        execute(using, FINISHED, {"jobs": jobs})
        execute(using, "VACUUM ANALYZE jobqueue_job")
    with spark() as session, tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as folder:
        note(f"spark: {jobs:,} finished jobs into Parquet, jobs/s")
        written = interleaved(
            bench.runs + 1,  # the first warms up
            {
                "ours": lambda: jobs / timed(lambda: _write(_ours(session), jobs, folder)),
                "JDBC": lambda: jobs / timed(lambda: _write(_jdbc(session, bench), jobs, folder)),
            },
        )
        written = {name: values[1:] for name, values in written.items()}
        middle = medians(written)
        found = [Row("S1 into Parquet, beside Spark's JDBC", middle["ours"], middle["JDBC"], 1.0, "jobs/s",
                     runs=written["ours"])]  # fmt: skip
        return found + _beside_a_worker(bench, session)


def _ours(session: Any, using: str = PAST, rest: float = 0.0) -> Any:
    import json

    from django_jobqueue.pipeline.archiving import ARCHIVABLE
    from django_jobqueue.pipeline.datasource import COLUMNS
    from django_jobqueue.pipeline.reading import load

    options = {"columns": json.dumps(list(COLUMNS))}
    return load(session, options, using=using, partitions=PARTITIONS, condition=ARCHIVABLE, rest=rest)


def _jdbc(session: Any, bench: _Bench) -> Any:
    from django.db import connections

    from django_jobqueue.pipeline.archiving import ARCHIVABLE
    from django_jobqueue.pipeline.datasource import COLUMNS

    given = psycopg.conninfo.conninfo_to_dict(bench.dsn(PAST))
    with connections[PAST].cursor() as cursor:
        cursor.execute("SELECT pg_relation_size('jobqueue_job_default') / 8192")
        pages = int(cursor.fetchone()[0])
    size = -(-pages // PARTITIONS)
    columns = ", ".join(f'{column.sql} AS "{name}"' for name, column in COLUMNS.items())
    parts = [f"place >= '({start},0)'::tid AND place < '({start + size},0)'::tid" for start in range(0, pages, size)]
    table = f"(SELECT {columns}, ctid AS place FROM jobqueue_job_default WHERE {ARCHIVABLE}) t"
    properties = {"user": given["user"], "driver": "org.postgresql.Driver", "fetchsize": "10000"}
    url = f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}"
    return session.read.jdbc(url, table, predicates=parts, properties=properties).select(*COLUMNS)


def _write(frame: Any, jobs: int, folder: str) -> None:
    path = f"{folder}/out"
    frame.write.mode("overwrite").partitionBy("day", "queue").parquet(path)
    found = frame.sparkSession.read.parquet(path).count()
    if found != jobs:
        raise AssertionError(f"{found} jobs were written, not {jobs}")


def _beside_a_worker(bench: _Bench, session: Any) -> list[Row]:
    from django_jobqueue.pipeline.archiving import REST

    jobs = bench.scaled(DRAINED)

    def read_all() -> None:
        _ours(session, LIVE, REST).write.format("noop").mode("overwrite").save()

    def drain() -> float:
        execute(LIVE, "DELETE FROM jobqueue_job WHERE queue_id = 'plain'")
        _send(LIVE, "plain", ((n, None) for n in range(jobs)))
        execute(LIVE, "VACUUM ANALYZE jobqueue_job")
        marks, end = bench.drain(LIVE, "plain", jobs)
        return rate(marks, 1, end)

    def drain_while(work: Callable[[], None]) -> float:
        over = threading.Event()

        def again_and_again() -> None:
            while not over.is_set():
                work()

        thread = threading.Thread(target=again_and_again)
        thread.start()
        try:
            return drain()
        finally:
            over.set()
            thread.join()

    note("spark: a worker that drains, alone and while the archive reads, jobs/s")
    found = interleaved(bench.runs, {"alone": drain, "while read": lambda: drain_while(read_all)})
    middle = medians(found)
    return [
        Row("S2 drain while the archive reads, beside alone", middle["while read"], middle["alone"], 0.75, "jobs/s",
            runs=found["while read"])
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------- the sink, the analysis


def sink(bench: _Bench) -> list[Row]:
    """Jobs from a DataFrame in a warm session, beside a bare COPY of the same rows into the job table."""
    from django_jobqueue.pipeline import write_jobs

    jobs = bench.scaled(JOBS)
    text = "x" * 80

    def write() -> float:
        execute(LIVE, "TRUNCATE jobqueue_job")
        frame = session.range(jobs, numPartitions=PARTITIONS).selectExpr("id AS n", f"'{text}' AS text")
        return jobs / timed(lambda: write_jobs(frame, queue="plain", order_by="n", using=LIVE))

    def copy() -> float:
        execute(LIVE, "TRUNCATE jobqueue_job")
        rows = raw.copy_rows(jobs)
        with psycopg.connect(bench.dsn(LIVE), autocommit=True) as connection:
            return jobs / timed(lambda: raw.copy(connection, rows))

    with spark(jars=False) as session:
        note(f"spark: {jobs:,} jobs into the table, jobs/s")
        found = interleaved(bench.runs + 1, {"write_jobs": write, "COPY": copy})
    found = {name: values[1:] for name, values in found.items()}  # the first warms up
    middle = medians(found)
    return [Row("S3 write_jobs, beside a bare COPY", middle["write_jobs"], middle["COPY"], 0.4, "jobs/s",
                runs=found["write_jobs"])]  # fmt: skip


FILES = 8


def files(bench: _Bench) -> list[Row]:
    """Jobs from several files in a warm session, beside a bare COPY; and how many processors Spark used for that."""
    from django_jobqueue.pipeline import Mapping, bulk_send

    jobs = bench.scaled(JOBS)
    cores: list[float] = []

    def send(kind: str) -> float:
        execute(LIVE, "TRUNCATE jobqueue_job, jobqueue_jobwrite, jobqueue_sentrow")
        call = partial(
            bulk_send, [f"{folder}/*.{kind}"], queue="ordered", mapping=Mapping(key="customer"), spark=session
        )
        used = processor_time.of_tree(os.getpid())
        seconds = timed(lambda: call(using=LIVE))
        cores.append((processor_time.of_tree(os.getpid()) - used) / seconds)
        return jobs / seconds

    def copy() -> float:
        execute(LIVE, "TRUNCATE jobqueue_job")
        rows = raw.copy_rows(jobs)
        with psycopg.connect(bench.dsn(LIVE), autocommit=True) as connection:
            return jobs / timed(lambda: raw.copy(connection, rows))

    with spark(jars=False) as session, tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as folder:
        _write_files(Path(folder), jobs)
        note(f"spark: {jobs:,} jobs from {FILES} files, jobs/s")
        ways: dict[str, Callable[[], float]] = {
            "csv": partial(send, "csv"),
            "jsonl": partial(send, "jsonl"),
            "COPY": copy,
        }
        found = interleaved(bench.runs + 1, ways)
    found = {name: values[1:] for name, values in found.items()}  # the first warms up
    middle = medians(found)
    note(f"  processors used by Python and Java: {', '.join(f'{one:.2f}' for one in cores)}")
    return [
        Row(
            f"S5 bulk_send of {kind}, beside a bare COPY",
            middle[kind],
            middle["COPY"],
            0.15,
            "jobs/s",
            runs=found[kind],
        )
        for kind in ("csv", "jsonl")
    ]


def _write_files(folder: Path, jobs: int) -> None:
    for file in range(FILES):
        numbers = range(file, jobs, FILES)
        with (folder / f"{file}.csv").open("w") as out:
            out.write("customer,n,text\n")
            out.writelines(f"c{number % 1_000},{number},{'x' * 80}\n" for number in numbers)
        with (folder / f"{file}.jsonl").open("w") as out:
            out.writelines(
                f'{{"customer": "c{number % 1_000}", "n": {number}, "text": "{"x" * 80}"}}\n' for number in numbers
            )


def analysis(bench: _Bench) -> list[Row]:
    """Time per million archived jobs must not grow with their number."""
    from django_jobqueue.pipeline import analyze_jobs, archive_jobs

    million, seconds = bench.scaled(JOBS), dict[int, float]()
    execute(LIVE, "TRUNCATE jobqueue_job")
    with spark(jars=False) as session, tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as lake:
        for millions in range(1, 6):
            execute(LIVE, FINISHED, {"jobs": million})
            archive_jobs(spark=session, lake=lake, older_than=0, rest=0, using=LIVE)
            if millions in (1, 2, 5):
                runs = [timed(lambda: analyze_jobs(spark=session, lake=lake, using=LIVE)) for _ in range(bench.runs)]
                seconds[millions] = min(runs) / millions
                note(f"  {millions} x {million:,} jobs: {seconds[millions]:.3g} s per {million:,}")
    return [
        Row(f"S4 analyze {millions} x {million:,} jobs, time per {million:,}", seconds[millions], seconds[1], 1.0, "s",
            at_least=False)
        for millions in (2, 5)
    ]  # fmt: skip


SUITES = {"source": source, "sink": sink, "files": files, "analysis": analysis}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="all by default")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", type=Path, default=Path("bench-spark.json"))
    options = parser.parse_args()
    if not JAR.exists():
        print(f"{JAR} is missing: apt-get install libpostgresql-jdbc-java", file=sys.stderr)
        return 2
    with laboratory([PAST, LIVE]) as server:
        from django_jobqueue import services

        services.create_queue("plain", using=LIVE)
        services.create_fifo_queue("ordered", using=LIVE)
        bench = _Bench(server, options.runs, options.scale)
        rows = [row for name in options.suites or SUITES for row in SUITES[name](bench)]
    return 0 if report(rows, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
