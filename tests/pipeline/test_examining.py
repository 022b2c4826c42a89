"""``jobs doctor --lake``: the lake is tried for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_jobqueue.states import JobState
from tests.commands.calling import jobs
from tests.factories import JobFactory, QueueFactory
from tests.past import ago


def findings(*arguments: str) -> dict[str, dict[str, Any]]:
    said = jobs("doctor", "--json", *arguments)
    return {found["code"]: found for found in said.json["findings"] if found["code"].startswith("lake")}


def test_a_lake_that_works_is_told_with_its_runs(spark, settings, lake):
    from django_jobqueue.pipeline.lake import Lake

    settings.JOBQUEUE = {"LAKE": lake}
    JobFactory(queue=QueueFactory(), state=JobState.COMPLETED, finalized_at=ago(days=8))
    jobs("archive", "--lake", lake)
    unfinished = Lake(spark, lake).begin("1/other", timezone.now(), [], []).run
    before = {path.name for path in Path(lake).iterdir()}

    found = findings("--lake")

    assert set(found) == {"lake_runs", "lake_unfinished"}
    assert found["lake_runs"]["title"] == "The lake holds 1 verified run with 1 job"
    assert f"{unfinished} (not verified)" in found["lake_unfinished"]["detail"]
    assert {one["level"] for one in found.values()} == {"notice"}
    assert {path.name for path in Path(lake).iterdir()} == before, "it leaves nothing behind"


@pytest.mark.parametrize(
    ("lake", "detail", "fix"),
    (
        ("/nowhere/lake", "There is no lake at /nowhere/lake.", "Correct --lake"),
        ("/proc", "The lake /proc cannot be used: ", ""),
        ("s3a://bucket/jobs", "S3AFileSystem", "--packages org.apache.hadoop:hadoop-aws:"),
    ),
)
def test_a_lake_that_cannot_be_used_is_an_error(lake, detail, fix, spark):
    said = jobs("doctor", "--lake", lake, "--json")

    (found,) = [one for one in said.json["findings"] if one["code"].startswith("lake")]
    assert (said.code, found["code"], found["level"]) == (1, "lake_unusable", "error")
    assert said.json["findings"][0] == found, "the worst first"
    assert detail in found["detail"]
    assert fix in found["fix"]


def test_hdfs_that_does_not_sync_is_a_warning(spark):
    """There is no HDFS here: its client is asked, which connects only when a file is wanted."""
    from django_jobqueue.pipeline.examining import SYNC_ON_CLOSE, _sync_on_close
    from django_jobqueue.pipeline.lake import Lake

    lake = Lake(spark, "hdfs://127.0.0.1:1/jobs")
    (found,) = _sync_on_close(lake)
    lake.hadoop.set(SYNC_ON_CLOSE, "true")
    try:
        right = list(_sync_on_close(lake))
    finally:
        lake.hadoop.unset(SYNC_ON_CLOSE)

    assert (lake.scheme, found.code, found.level) == ("hdfs", "lake_not_synced", "warning")
    assert right == []


def test_a_lake_that_is_out_of_reach_is_an_error(spark):
    retries = "ipc.client.connect.max.retries"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(retries, "0")
    try:
        (found,) = findings("--lake", "hdfs://127.0.0.1:1/jobs").values()
    finally:
        hadoop.unset(retries)

    assert found["code"] == "lake_unusable"
    assert "Connection refused" in found["detail"]
