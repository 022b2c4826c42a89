"""Archived jobs are sent again: as new jobs, in their order, with the name of their origin."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, JobNotFound, QueueNotFound
from django_jobqueue.models import Job
from django_jobqueue.states import Hold, JobState
from tests.factories import JobFactory, QueueFactory


@pytest.fixture
def archived(spark, lake):
    """Three jobs of one ordered key, in the lake and nowhere else."""
    from django_jobqueue.pipeline import archive_jobs

    queue = services.create_fifo_queue("orders")
    jobs = [
        JobFactory(queue=queue, singleton_key="anna", data={"n": n}, name="pack", priority=n, tags=["x"],
                   state=JobState.COMPLETED)
        for n in range(3)
    ]  # fmt: skip
    archive_jobs(spark=spark, lake=lake, older_than=0)
    assert not Job.objects.exists()
    return jobs


@pytest.fixture
def restore(spark, lake):
    def call(**options: Any):
        from django_jobqueue.pipeline import restore_jobs

        return restore_jobs(spark=spark, lake=lake, **options)

    return call


def test_they_are_new_jobs_that_name_their_origin_in_their_order(archived, restore):
    done = restore(queue="orders")

    jobs = list(Job.objects.order_by("seq"))
    assert [job.data for job in jobs] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [(job.source_id, job.source_queue, job.source_key) for job in jobs] == [
        (job.pk, "orders", "anna") for job in archived
    ]
    assert done.sent == {job.source_id: job.pk for job in jobs}
    assert {(job.state, job.name, job.singleton_key, *job.tags) for job in jobs} == {("created", "pack", "anna", "x")}
    ran = []
    while fetched := services.fetch("orders"):
        ran.append(fetched[0].data["n"])
        services.complete(fetched[0])
    assert ran == [0, 1, 2]


def test_to_do_it_twice_does_no_harm_unless_asked_for(archived, restore):
    first = restore(queue="orders")
    second = restore(queue="orders")
    third = restore(queue="orders", again=True)

    assert (len(first.sent), len(second.sent), len(third.sent)) == (3, 0, 3)
    assert set(second.refused) == {job.pk for job in archived}
    assert Job.objects.count() == 6


def test_jobs_are_chosen_by_all_that_is_given(archived, restore):
    now = timezone.now()

    def number(**choice: Any) -> int:
        return int(restore(dry_run=True, **choice).found)

    assert number(ids=[archived[1].pk]) == 1
    assert number(ids=[archived[1].seq, f"#{archived[2].seq}", str(archived[1].pk)]) == 2
    assert number(queue="orders", key="anna", name="pack", state=["completed"]) == 3
    assert number(queue="orders", state=["failed"]) == 0
    assert number(finalized_after=now - timedelta(hours=1), finalized_before=now + timedelta(hours=1)) == 3
    assert number(finalized_after=now + timedelta(hours=1)) == 0
    assert number(queue="orders", limit=2) == 2
    assert not Job.objects.exists()


def test_a_number_that_several_jobs_of_the_lake_have_is_refused(archived, restore, spark, lake):
    from django_jobqueue.pipeline import archive_jobs

    JobFactory(queue=QueueFactory(), state=JobState.COMPLETED, seq=archived[0].seq)
    archive_jobs(spark=spark, lake=lake, older_than=0)

    with pytest.raises(InvalidOption, match=f"2 jobs of the lake have the number {archived[0].seq}"):
        restore(ids=[archived[0].seq])


def test_they_keep_why_their_origin_failed(spark, lake, restore):
    from django_jobqueue.pipeline import archive_jobs

    queue = QueueFactory(name="mails")
    JobFactory(queue=queue, state=JobState.FAILED, error="ShopError: no card\nand more")
    JobFactory(queue=queue, state=JobState.COMPLETED)
    archive_jobs(spark=spark, lake=lake, older_than=0)

    restore(queue="mails")

    assert [(job.error, job.error_summary) for job in Job.objects.order_by("seq")] == [
        ("", "ShopError: no card"), ("", None),
    ]  # fmt: skip

    _as_written_before(lake)
    done = restore(queue="mails", again=True)

    assert {job.error_summary for job in Job.objects.filter(pk__in=done.sent.values())} == {None}


def _as_written_before(lake):
    """As if the release that wrote the archive had no summaries."""
    from pyarrow import parquet

    for file in Path(lake).rglob("*.parquet"):
        parquet.write_table(parquet.ParquetFile(file).read().drop_columns(["error_summary"]), file)
        file.with_name(f".{file.name}.crc").unlink()


def test_they_may_go_to_another_queue(archived, restore):
    QueueFactory(name="replay")

    restore(ids=[archived[0].pk], to="replay")

    job = Job.objects.get()
    assert (job.queue_id, job.source_queue, job.hold) == ("replay", "orders", None)
    assert Hold.LANE not in {one.hold for one in Job.objects.all()}


def test_what_cannot_be_is_said_before_anything_is_sent(archived, restore):
    with pytest.raises(InvalidOption, match="ids or filters"):
        restore()
    with pytest.raises(JobNotFound):
        restore(ids=[archived[0].pk, uuid4()])
    with pytest.raises(JobNotFound, match="No job has the number 99999999"):
        restore(ids=[archived[0].pk, 99_999_999])
    with pytest.raises(QueueNotFound):
        restore(queue="orders", to="nope")
    services.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        restore(queue="orders")
    assert not Job.objects.exists()


def test_data_that_was_left_out_cannot_be_sent_again(spark, lake, restore):
    from django_jobqueue.pipeline import archive_jobs

    job = JobFactory(state=JobState.COMPLETED, data={"card": 1})
    archive_jobs(spark=spark, lake=lake, older_than=0, without=["data"])

    with pytest.raises(InvalidOption, match="left out of the lake"):
        restore(ids=[job.pk])
    assert not Job.objects.exists()
