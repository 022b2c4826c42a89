"""Jobs as a DataFrame: which columns, in how many parts, as of which moment, and what stays hidden."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from django.db import connection

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory


@pytest.fixture
def reading():
    from django_jobqueue.pipeline import reading

    return reading


def ids(frame):
    return sorted(row.id for row in frame.select("id").collect())


def test_every_column_is_what_the_table_holds(spark, reading):
    job = JobFactory(
        queue=QueueFactory(name="007"),
        state=JobState.COMPLETED,
        data={"a": ["ü", None, 1.5]},
        tags=["x", "it's"],
        singleton_key="k'\\n",
        priority=-3,
    )

    (row,) = reading.read_jobs(spark, columns=reading.COLUMNS).collect()

    assert row.id == str(job.pk)
    assert row.queue == "007"
    assert row.tags == ["x", "it's"]
    assert row.singleton_key == "k'\\n"
    assert (row.priority, row.seq, row.sent_xid, row.state) == (-3, job.seq, job.sent_xid, "completed")
    assert row.finalized_at.astimezone() == job.finalized_at
    assert row.data == '{"a": ["ü", null, 1.5]}'
    assert set(row.asDict()) == set(reading.COLUMNS)


def test_what_is_heavy_is_read_only_when_asked_for(spark, reading):
    JobFactory(data={"a": 1})

    assert {"data", "output"} & set(reading.read_jobs(spark).columns) == set()
    assert reading.read_jobs(spark, columns=["id", "data"]).columns == ["id", "data"]


def test_filters_work_in_the_database(spark, reading, partitioned_queue):
    mine = JobFactory(queue=partitioned_queue, state=JobState.COMPLETED, name="pack")
    JobFactory(queue=QueueFactory(name="other"), state=JobState.COMPLETED)
    waiting = JobFactory(queue=partitioned_queue)

    read = reading.read_jobs
    assert ids(read(spark, queue=partitioned_queue.name, state="completed")) == [str(mine.pk)]
    assert ids(read(spark, name=["pack"])) == [str(mine.pk)]
    assert ids(read(spark, queue=partitioned_queue.name)) == sorted([str(mine.pk), str(waiting.pk)])
    assert ids(read(spark, finalized_before=mine.finalized_at)) == []
    assert len(ids(read(spark, created_after=mine.created_at))) == 3
    assert ids(read(spark, name="it's; DROP TABLE jobqueue_job")) == []


def test_what_does_not_exist_is_refused_at_once(spark, reading):
    from pyspark.errors import AnalysisException

    with pytest.raises(InvalidOption, match="no column 'dta'"):
        reading.read_jobs(spark, columns=["dta"])
    with pytest.raises(InvalidOption, match="state"):
        reading.read_jobs(spark, state="done")
    reading.register(spark)
    with pytest.raises(AnalysisException, match="Did you mean 'queue'"):
        spark.read.format("jobqueue").option("dsn", "host=x").option("quue", "a").load().collect()
    with pytest.raises(AnalysisException, match="Did you mean 'data'"):
        spark.read.format("jobqueue").option("dsn", "host=x").option("columns", "dta").load()


def test_a_large_table_is_read_in_parts_and_each_row_once(spark, reading):
    queue = QueueFactory(name="work")
    services.send_many(queue.name, [{"data": "x" * 900} for _ in range(8_000)])

    jobs = reading.read_jobs(spark, partitions=4, columns=["id", "seq"])

    assert jobs.rdd.getNumPartitions() == 4
    assert jobs.count() == jobs.select("id").distinct().count() == 8_000


def test_one_snapshot_sees_one_moment(spark, reading):
    before = JobFactory()
    with reading.job_snapshot() as snapshot:
        after = JobFactory()
        services.cancel([before.pk])

        frozen = reading.read_jobs(spark, snapshot=snapshot)
        assert [(row.id, row.state) for row in frozen.collect()] == [(str(before.pk), "created")]
        assert len(ids(reading.read_jobs(spark))) == 2
    assert ids(reading.read_jobs(spark)) == sorted([str(before.pk), str(after.pk)])


def test_the_raw_format_takes_options_only(spark, reading):
    job = JobFactory(queue=QueueFactory(name="a,b".replace(",", "-")))
    reading.register(spark)

    frame = spark.read.format("jobqueue").option("dsn", reading.conninfo_of("default")).option("queue", "a-b,c").load()

    assert ids(frame) == [str(job.pk)]


@pytest.fixture
def with_password(spark):
    """The same database as a user whose password one can search for."""
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS sparkling")
        cursor.execute(f"CREATE ROLE sparkling LOGIN SUPERUSER PASSWORD '{SECRET}'")
    before = {name: connection.settings_dict[name] for name in ("USER", "PASSWORD")}
    connection.settings_dict.update(USER="sparkling", PASSWORD=SECRET)
    connection.close()
    yield
    connection.settings_dict.update(before)
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE sparkling")


SECRET = "correct-horse-battery-staple"


def test_no_password_is_in_plans_logs_or_pages(spark, reading, with_password, lake, capfd):
    from django_jobqueue.pipeline import archive_jobs

    JobFactory(state=JobState.COMPLETED)
    assert SECRET in reading.conninfo_of("default")

    jobs = reading.read_jobs(spark)
    assert jobs.count() == 1
    archive_jobs(spark=spark, lake=lake, older_than=0)
    jobs.explain(True)
    shown = jobs._jdf.queryExecution().toString() + capfd.readouterr().out
    shown += "".join(page(spark, path) for path in ("environment/", "SQL/", "jobs/", "stages/", *executions(spark)))
    shown += "".join(path.read_text() for path in spark.events.rglob("*") if path.is_file())

    assert "BatchScan jobqueue" in shown
    assert SECRET not in shown


def page(spark: Any, path: str) -> str:
    with urlopen(f"{spark.sparkContext.uiWebUrl}/{path}") as answer:
        return str(answer.read().decode())


def executions(spark: Any) -> list[str]:
    return [f"SQL/execution/?id={number}" for number in range(500) if f"execution/?id={number}" in page(spark, "SQL/")]


def test_an_error_of_the_connection_does_not_tell_the_password(spark, reading):
    from pyspark.errors import AnalysisException

    reading.register(spark)
    frame = spark.read.format("jobqueue").option("dsn", "host=127.0.0.1 port=1 user=x").option("password", SECRET)

    with pytest.raises(AnalysisException) as failure:
        frame.load().collect()

    assert "port 1 failed" in str(failure.value)
    assert SECRET not in str(failure.value)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("size", "rest", "rests"), ((400, 2.0, True), (400, 0.0, False), (1, 2.0, False)))
def test_a_task_rests_for_as_long_as_it_was_told(reading, monkeypatch, queue, size, rest, rests):
    """Not after its only batch, because a small part does not disturb other processes."""
    from django_jobqueue.pipeline import datasource

    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, data) SELECT gen_random_uuid(), %s, to_jsonb(repeat('x', 100000)) "
            "FROM generate_series(1, %s)",
            [queue.name, size],
        )
    slept: list[float] = []
    monkeypatch.setattr(datasource, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    bound = {"conninfo": reading.conninfo_of("default"), "rest": rest}
    source = type("Bound", (datasource.JobDataSource,), bound)({"columns": "id,data", "partitions": "1"})
    reader = source.reader(None)

    number = 0
    for batch in (batch for piece in reader.partitions() for batch in reader.read(piece)):
        number += batch.num_rows
        until = time.monotonic() + 0.05  # what is done with it counts as work
        while time.monotonic() < until:
            pass

    assert number == size
    assert (sum(slept) >= 0.05 * rest > 0) == rests
