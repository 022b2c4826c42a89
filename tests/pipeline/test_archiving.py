"""What the archive takes, what it leaves, and what the lake then holds."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, LakeProblem, QueueNotFound
from django_jobqueue.models import Job, Maintenance
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.states import BLOCKING, FINAL, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago


def archive(spark, lake, **options: Any):
    from django_jobqueue.pipeline import archive_jobs

    return archive_jobs(spark=spark, lake=lake, **{"older_than": 0, **options})


def in_lake(spark, lake, *columns):
    from django_jobqueue.pipeline import read_lake

    return read_lake(spark, lake).select(*columns or ["id"]).orderBy("seq" if columns else "id").collect()


def lake_ids(spark, lake):
    return sorted(row.id for row in in_lake(spark, lake))


def finished(number=1, *, queue=None, **columns: Any):
    queue = queue or QueueFactory()
    return [JobFactory(queue=queue, state=JobState.COMPLETED, **columns) for _ in range(number)]


def text(jobs):
    return sorted(str(job.pk) for job in jobs)


def runs(lake):
    return sorted(path.name for path in Path(lake).glob("run=*"))


def test_finished_jobs_move_to_the_lake_with_every_column(spark, lake):
    from django_jobqueue.pipeline.lake import JOB_SCHEMA

    queue = QueueFactory(name="a/b:c.d")
    (job,) = finished(queue=queue, data={"x": [1, "ü"]}, tags=["t"], singleton_key="it's", finalized_at=ago(days=3))

    done = archive(spark, lake)

    assert (done.written, done.deleted, done.kept) == (1, 1, 0)
    assert not Job.objects.exists()
    ((row,),) = [in_lake(spark, lake, *JOB_SCHEMA.fieldNames())]
    assert (row.id, row.queue, row.state, row.singleton_key, row.tags) == (
        str(job.pk), "a/b:c.d", "completed", "it's", ["t"],
    )  # fmt: skip
    assert json.loads(row.data) == {"x": [1, "ü"]}
    assert json.loads(row.output) == {"done": True}
    assert row.finalized_at.astimezone() == job.finalized_at
    assert row.day == job.finalized_at.date()
    assert row.without == []


def test_the_name_of_a_queue_stays_a_text(spark, lake):
    names = {"007", "2026-11-16", "1e3", "true", "null"}
    for name in names:
        finished(queue=QueueFactory(name=name))

    archive(spark, lake)

    assert {row.queue for row in in_lake(spark, lake, "queue", "seq")} == names


def test_only_jobs_older_than_the_cut_off_are_taken(spark, lake):
    (old,) = finished(finalized_at=ago(days=8))
    (young,) = finished(finalized_at=ago(days=6))

    archive(spark, lake, older_than=timedelta(days=7))

    assert lake_ids(spark, lake) == text([old])
    assert Job.objects.get() == young


def test_a_job_that_blocks_a_key_or_is_not_finished_is_never_taken(spark, lake):
    fifo = QueueFactory(policy=QueuePolicy.KEY_STRICT_FIFO)
    plain = QueueFactory()
    ordered = {state: JobFactory(queue=fifo, singleton_key=state, state=state, **_ended(state)) for state in JobState}
    free = {state: JobFactory(queue=plain, state=state, **_ended(state)) for state in JobState}

    archive(spark, lake)

    taken = [ordered[state] for state in FINAL - BLOCKING] + [free[state] for state in FINAL]
    assert lake_ids(spark, lake) == text(taken)
    assert set(Job.objects.all()) == {*ordered.values(), *free.values()} - set(taken)


def _ended(state):
    return {"finalized_at": ago(days=1)} if state in FINAL else {}


def test_jobs_of_every_part_of_the_table_are_taken(spark, lake, partitioned_queue):
    jobs = finished(3) + finished(3, queue=partitioned_queue)

    archive(spark, lake)

    assert lake_ids(spark, lake) == text(jobs)
    assert not Job.objects.exists()


def test_one_queue_may_be_chosen(spark, lake, partitioned_queue):
    mine = finished(2, queue=partitioned_queue)
    finished(2)

    archive(spark, lake, queue=partitioned_queue.name)

    assert lake_ids(spark, lake) == text(mine)
    assert Job.objects.count() == 2


def test_a_run_adds_only_what_is_new(spark, lake):
    first = finished(2)
    archive(spark, lake)
    second = finished(3)

    done = archive(spark, lake)

    assert done.written == 3
    assert lake_ids(spark, lake) == text(first + second)
    assert len(runs(lake)) == 2


def test_nothing_to_do_leaves_no_trace(spark, lake):
    done = archive(spark, lake)

    assert (done.written, done.run) == (0, "")
    assert runs(lake) == []


def test_columns_can_be_left_out(spark, lake):
    finished(data={"card": "4111"})

    JobFactory(queue=QueueFactory(), state=JobState.FAILED, error="ShopError: card 4111")

    archive(spark, lake, without=["data", "output", "error", "attempts"])

    for row in in_lake(spark, lake, "data", "output", "without", "error", "error_summary", "note", "seq"):
        assert (row.data, row.output, row.error, row.error_summary, row.note) == (None, None, None, None, "")
        assert row.without == ["data", "output", "error", "attempts"]
    written = b"".join(path.read_bytes() for path in Path(lake).rglob("*.parquet"))
    assert b"4111" not in written


def test_what_cannot_be_left_out_is_refused(spark, lake):
    with pytest.raises(InvalidOption, match="'seq' cannot be left out"):
        archive(spark, lake, without=["seq"])
    with pytest.raises(QueueNotFound):
        archive(spark, lake, queue="nope")
    with pytest.raises(InvalidOption, match="older_than"):
        archive(spark, lake, older_than=-1)
    with pytest.raises(InvalidOption, match="rest"):
        archive(spark, lake, rest=-1)
    with pytest.raises(InvalidOption, match="lake"):
        archive(spark, None)


def test_a_job_that_was_given_another_attempt_meanwhile_stays_and_is_once_in_the_lake(spark, lake):
    job = JobFactory(state=JobState.FAILED)

    def between(progress):
        if progress.stage == "verified":
            services.retry(job.pk)

    done = archive(spark, lake, tell=between)

    assert (done.written, done.deleted, done.kept) == (1, 0, 1)
    assert Job.objects.get().state == JobState.RETRY
    services.complete(services.fetch(job.queue_id)[0])
    archive(spark, lake)
    assert [(row.id, row.state) for row in in_lake(spark, lake, "id", "state", "seq")] == [(str(job.pk), "completed")]
    assert not Job.objects.exists()


def test_minutes_that_are_not_counted_yet_are_left(spark, lake):
    Maintenance.objects.update_or_create(id=1, defaults={"counted_until": ago(minutes=10)})
    (counted,) = finished(finalized_at=ago(minutes=11))
    finished(finalized_at=ago(minutes=9))

    archive(spark, lake)

    assert lake_ids(spark, lake) == text([counted])


def test_a_run_that_lost_a_row_deletes_nothing(spark, lake):
    finished(4)

    def damage(progress):
        if progress.stage == "written":
            for path in [*Path(lake).rglob("*.parquet")][:1]:
                path.unlink()

    with pytest.raises(LakeProblem, match="differs from what was written"):
        archive(spark, lake, tell=damage)

    assert Job.objects.count() == 4
    assert lake_ids(spark, lake) == []


def test_what_is_not_verified_is_not_read_and_is_removed(spark, lake):
    jobs = finished(2)

    def stop(progress):
        if progress.stage == "written":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archive(spark, lake, tell=stop)
    assert lake_ids(spark, lake) == []
    assert Job.objects.count() == 2

    done = archive(spark, lake)

    assert len(done.removed_runs) == 1
    assert lake_ids(spark, lake) == text(jobs)
    assert len(runs(lake)) == 1


def test_deletes_that_were_interrupted_are_resumed(spark, lake):
    jobs = finished(3)

    def stop(progress):
        if progress.stage == "verified":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archive(spark, lake, tell=stop)
    assert Job.objects.count() == 3

    done = archive(spark, lake)

    assert (len(done.resumed_runs), done.written, done.deleted) == (1, 0, 3)
    assert not Job.objects.exists()
    assert lake_ids(spark, lake) == text(jobs)


def test_a_resumed_archive_counts_as_kept_only_what_is_still_there(spark, lake, monkeypatch):
    from django_jobqueue.pipeline import archiving

    monkeypatch.setattr(archiving, "AT_ONCE", 1)
    queue = QueueFactory()
    for _ in range(3):
        JobFactory(queue=queue, state=JobState.FAILED)

    def stop(progress):
        if progress.stage == "deleting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archive(spark, lake, tell=stop)
    changed, _ = Job.objects.all()
    services.retry(changed.pk)

    done = archive(spark, lake)

    assert (done.deleted, done.kept) == (1, 1)
    (path,) = Path(lake).glob("run=*/_DONE")
    assert json.loads(path.read_text()) == {"run": done.resumed_runs[0], "deleted": 1, "kept": 1}


def test_an_unfinished_run_of_another_database_is_left_alone(spark, lake):
    from django.utils import timezone

    from django_jobqueue.pipeline.lake import Lake

    other = Lake(spark, lake).begin("123/elsewhere", timezone.now(), [], [])
    finished(1)

    archive(spark, lake)

    assert f"run={other.run}" in runs(lake)


def test_another_archive_at_the_same_time_does_nothing(spark, lake):
    finished(1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtextextended('jobqueue archive', 0))")
        try:
            done = archive(spark, lake)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(hashtextextended('jobqueue archive', 0))")

    assert done.busy
    assert Job.objects.count() == 1


def test_old_runs_are_read_and_newer_ones_refused(spark, lake):
    """A run of an earlier release has fewer columns; one of a later release is not guessed at."""
    from django.utils import timezone

    from django_jobqueue.pipeline.lake import JOB_SCHEMA, VERIFIED, Lake

    home = Lake(spark, lake)
    old = home.begin("1/old", timezone.now(), [], [])
    frame = spark.createDataFrame([("x", "old", 1)], "id string, queue string, seq long")
    frame.selectExpr("*", "date'2025-01-01' AS day").write.mode("append").partitionBy("day", "queue").parquet(
        home.folder(old.run)
    )
    home.mark(old.run, VERIFIED, {"schema_version": 1, "rows": 1, "digest": 0, "database": "1/old"})
    finished(1)
    archive(spark, lake)

    rows = in_lake(spark, lake, *JOB_SCHEMA.fieldNames())
    assert {(row.queue, row.note) for row in rows} >= {("old", None)}
    assert len(rows) == 2

    home.mark(home.begin("1/new", timezone.now(), [], []).run, VERIFIED, {"schema_version": 99})
    with pytest.raises(LakeProblem, match="newer django-jobqueue"):
        in_lake(spark, lake)


SECRETS = {
    "data": {"card": {"number": "4111", "pwd": "hunter2"}, "url": "https://ada:hunter2@bank.example.com/", "ü": 1},
    "output": {"token": "hunter2"},
    "error": "ValueError: login(password='hunter2') was refused",
    "note": "token=hunter2",
}


def test_secrets_do_not_reach_the_lake_and_such_a_job_is_not_restored(spark, lake):
    from django_jobqueue.pipeline import restore_jobs

    (secret, plain) = finished(2)
    Job.objects.filter(pk=secret.pk).update(**SECRETS, attempts=[{"attempt": 1, "error": "KeyError: token=hunter2"}])
    Job.objects.filter(pk=plain.pk).update(data={"n": 1.50, "ü": "x"})

    archive(spark, lake)

    rows = {row.id: row.asDict() for row in in_lake(spark, lake, "seq", "id", "name", "without", "attempts", *SECRETS)}
    assert "hunter2" not in str(rows)
    assert json.loads(rows[str(secret.pk)]["data"])["card"] == {"number": "4111", "pwd": "********"}
    assert rows[str(secret.pk)]["without"] == ["data"]
    assert rows[str(plain.pk)]["without"] == []
    with pytest.raises(InvalidOption, match="or parts of it are hidden"):
        restore_jobs(spark=spark, lake=lake, ids=[secret.pk])
    assert len(restore_jobs(spark=spark, lake=lake, ids=[plain.pk]).sent) == 1


def test_secrets_are_kept_if_the_archive_is_told_to(spark, lake):
    (secret,) = finished()
    Job.objects.filter(pk=secret.pk).update(**SECRETS)

    archive(spark, lake, redact=False)

    ((data, without),) = in_lake(spark, lake, "data", "without")
    assert json.loads(data) == SECRETS["data"]
    assert without == []


def test_what_hides_secrets_needs_no_package_on_an_executor():
    import subprocess
    import sys

    from pyspark import cloudpickle

    from django_jobqueue.pipeline import reading  # noqa: F401 # it registers the module
    from django_jobqueue.redaction import StoredText

    code = (
        "import sys, pickle; sys.modules['django'] = sys.modules['django_jobqueue'] = None\n"
        "stored = pickle.loads(sys.stdin.buffer.read())\n"
        "print(stored.document('{\"args\": [\"x\"]}', 'task'), stored.error('password=x'))"
    )
    pickled = cloudpickle.dumps(StoredText(["password"], {"task": ["password"]}))
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, check=True)

    assert done.stdout.decode().split("\n")[0] == '{"args": ["********"]} password=********'
