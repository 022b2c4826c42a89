"""Jobs from a DataFrame: all or none, in order, whatever happens to tasks and drivers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from django_jobqueue import maintenance, services
from django_jobqueue.exceptions import InvalidOption, KeyRequired, QueueNotFound
from django_jobqueue.models import Job, JobWrite, StagedJob
from django_jobqueue.states import Hold
from tests.factories import QueueFactory
from tests.past import ago

ROWS, KEYS = 20_000, 1_000


@pytest.fixture
def write(spark):
    def call(rows: Any, schema: str = "n int, key string", **options: Any) -> None:
        from django_jobqueue.pipeline import write_jobs

        frame = spark.createDataFrame(rows, schema) if isinstance(rows, list) else rows
        write_jobs(frame, **{"queue": "work", **options})

    return call


@pytest.fixture
def work() -> Any:
    return QueueFactory(name="work", retry_limit=7, expire_in_seconds=33)


def test_a_row_becomes_a_job_with_what_its_columns_say(write, work, spark):
    id, due = uuid4(), timezone.now() + timedelta(days=1)
    schema = "n int, nothing string, k string, g string, p int, t array<string>, due timestamp, id string"

    write([(7, None, "key", "group", 5, ["a", "b"], due, str(id))], schema, key="k", group_key="g", priority="p",
          tags="t", start_after="due", id="id", name="pack")  # fmt: skip

    job = Job.objects.get()
    assert (job.pk, job.name, job.singleton_key, job.group_key, job.priority, job.tags) == (
        id, "pack", "key", "group", 5, ["a", "b"],
    )  # fmt: skip
    assert job.data == {"n": 7, "nothing": None}
    assert (job.hold, job.start_after, job.first_start_after) == (Hold.UNTIL, due, due)
    assert (job.retry_limit, job.expire_in_seconds, job.state, job.policy) == (7, 33, "created", "standard")
    assert job.position == job.seq
    assert not StagedJob.objects.exists()


def test_data_may_be_json_or_some_columns(write, work):
    write([(1, '{"a": [1, 2]}')], data="key")
    write([(2, "x")], data=["n"])
    write([(3, "x")], data=[])

    assert list(Job.objects.order_by("seq").values_list("data", flat=True)) == [{"a": [1, 2]}, {"n": 2}, None]


@pytest.mark.parametrize(
    ("kind", "values"),
    (("int", [3, 1, 2]), ("double", [0.3, -0.1, 0.2]), ("string", ["c", "A", "b"]), ("date", None)),
)
def test_the_order_is_that_of_the_column(write, work, kind, values):
    values = values or [timezone.now().date() + timedelta(days=n) for n in (3, 1, 2)]

    write([(value, str(place)) for place, value in enumerate(values)], f"o {kind}, place string", order_by="o",
          data=["place"])  # fmt: skip

    assert [job.data["place"] for job in Job.objects.order_by("seq")] == ["1", "2", "0"]


def test_jobs_of_a_lane_are_born_as_send_many_does_it(write):
    services.create_fifo_queue("work")
    rows = [(1, "a", 0.0), (2, "a", 0.0), (3, "b", 3600.0), (4, "b", 0.0), (5, "b", 0.0)]

    write(rows, "n int, key string, delay double", key="key", order_by="n", delay="delay")

    held = [(job.data["n"], job.hold) for job in Job.objects.order_by("seq")]
    assert held == [(1, None), (2, Hold.LANE), (3, Hold.UNTIL), (4, None), (5, Hold.LANE)]
    ran = []
    while jobs := services.fetch("work", limit=10):
        ran += [job.data["n"] for job in jobs]
        for job in jobs:
            services.complete(job)
    assert ran == [1, 4, 2, 5]


def test_with_one_running_the_highest_priority_goes_first(write):
    services.create_queue("work", policy="singleton")

    write([(1, "a"), (9, "a")], key="key", priority="n", data=["n"])

    assert [(job.priority, job.hold) for job in Job.objects.order_by("seq")] == [(1, Hold.LANE), (9, None)]


def test_thousands_of_rows_with_a_task_that_fails_and_is_retried(spark, tmp_path, monkeypatch):
    """The first attempt of one task breaks after it has staged its rows; what it staged is thrown away."""
    from pyspark.sql import functions as F

    from django_jobqueue.pipeline import datasource, write_jobs

    services.create_fifo_queue("work")
    broken = str(tmp_path / "broken")

    whole = datasource.JobWriter.write

    def breaking(self, iterator):
        from pathlib import Path

        from pyspark import TaskContext

        staged = whole(self, iterator)
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and context.attemptNumber() == 0:
            Path(broken).write_text(str(staged.rows))  # type: ignore[attr-defined]
            raise RuntimeError("this attempt was to fail")
        return staged

    monkeypatch.setattr(datasource.JobWriter, "write", breaking)

    frame = spark.range(ROWS, numPartitions=4).withColumn("key", F.concat(F.lit("k"), F.col("id") % KEYS))

    write_jobs(frame.withColumnRenamed("id", "n"), queue="work", key="key", order_by="n")

    assert (tmp_path / "broken").read_text() == str(ROWS // 4)
    found = list(Job.objects.order_by("seq").values_list("data__n", "singleton_key", "hold"))
    assert [n for n, _, _ in found] == list(range(ROWS))
    assert sum(hold is None for _, _, hold in found) == KEYS
    assert all(key == f"k{n % KEYS}" for n, key, _ in found)
    assert not StagedJob.objects.exists()


def test_a_commit_that_fails_sends_nothing(write, work):
    """The last row is no JSON, which only the commit can tell."""
    with pytest.raises(Exception, match="invalid input syntax for type json"):
        write([(1, '{"a": 1}'), (2, "{")], data="key")

    assert not Job.objects.exists()
    assert not StagedJob.objects.exists()
    assert not JobWrite.objects.exists()


def test_to_repeat_a_write_is_harmless_with_a_name_or_with_ids(write, work):
    rows = [(n, str(uuid4())) for n in range(3)]

    for _ in range(2):
        write(rows, write_id="monday")
    assert Job.objects.count() == 3

    for _ in range(2):
        write([*rows, (4, str(uuid4())), rows[0]], id="key")
    assert Job.objects.count() == 3 + 3 + 2  # the fourth had a new id each time
    assert not StagedJob.objects.exists()


def test_a_repeated_id_does_not_strand_its_lane(write):
    """The row that would go first exists already, so another one does."""
    services.create_fifo_queue("work")
    first, second = str(uuid4()), str(uuid4())
    write([(1, first)], id="key", key="n")
    services.complete(services.fetch("work")[0])

    write([(1, first), (1, second)], id="key", key="n")

    assert [str(job.pk) for job in services.fetch("work")] == [second]


def test_what_a_killed_driver_left_is_cleaned_up(spark, work):
    StagedJob.objects.create(write="w", partition=0, attempt=1, row=0, data="{}")
    maintenance.maintain()
    assert StagedJob.objects.exists()
    StagedJob.objects.update(staged_at=ago(days=2))

    report = maintenance.maintain()

    assert report["forget"].done["staged"] == 1
    assert not StagedJob.objects.exists()


def test_what_cannot_be_is_refused(write, work, spark):
    services.create_fifo_queue("orders")
    with pytest.raises(QueueNotFound):
        write([(1, "a")], queue="nope")
    with pytest.raises(KeyRequired):
        write([(1, "a")], queue="orders")
    with pytest.raises(InvalidOption, match="there is no column 'kye'"):
        write([(1, "a")], key="kye")
    with pytest.raises(Exception, match="FIFO queues require a singleton_key; 1 rows"):
        write([(1, "")], queue="orders", key="key")
    with pytest.raises(Exception, match="MAX_DATA_BYTES"):
        write([(1, "x" * 300_000)])
    assert not Job.objects.exists()
    assert not StagedJob.objects.exists()


def test_the_raw_format_writes_too(spark, work):
    from django_jobqueue.pipeline.reading import conninfo_of, register

    register(spark)
    frame = spark.createDataFrame([("k", '{"n": 1}')], "singleton_key string, data string")
    options = {"dsn": conninfo_of("default"), "queue": "work"}

    frame.write.format("jobqueue").mode("append").options(**options).save()

    job = Job.objects.get()
    assert (job.singleton_key, job.data) == ("k", {"n": 1})
    with pytest.raises(Exception, match="Jobs have no column 'sngleton_key'"):
        frame.withColumnRenamed("singleton_key", "sngleton_key").write.format("jobqueue").mode("append").options(
            **options
        ).save()
    with pytest.raises(Exception, match=r"append|truncate|overwrite"):
        frame.write.format("jobqueue").mode("overwrite").options(**options).save()
