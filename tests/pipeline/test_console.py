"""``manage.py jobs archive``, ``audit`` and ``restore``, as an operator types them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.commands.calling import jobs
from tests.factories import JobFactory, QueueFactory
from tests.faults.runner import ROOT
from tests.past import ago, reread

from .processes import PATIENCE, environment, run, without_java


def test_archive_audit_and_restore(spark, lake):
    queue = services.create_fifo_queue("orders")
    job = JobFactory(queue=queue, singleton_key="a", state=JobState.COMPLETED, finalized_at=ago(days=8), data={"n": 1})
    JobFactory(queue=queue, singleton_key="a", state=JobState.FAILED, finalized_at=ago(days=8))

    tried = jobs("archive", "--lake", lake, "--dry-run", "--json").json
    done = jobs("archive", "--lake", lake, "--json").json
    again = jobs("archive", "--lake", lake)
    audit = jobs("audit", "--lake", lake, "--json")
    would = jobs("restore", job.pk, "--lake", lake, "--dry-run")
    restored = jobs("restore", job.pk, "--lake", lake)
    refused = jobs("restore", "--queue", "orders", "--lake", lake, "--since", "2020-01-01", "--json")

    assert (tried["number"], tried["dry_run"]) == (1, True)
    assert (done["written"], done["deleted"], done["busy"]) == (1, 1, False)
    assert (again.code, again.out.splitlines()[0].split()) == (0, ["archived", "0", "jobs"])
    assert (audit.code, audit.json["jobs"], audit.json["breaches"]) == (0, 2, [])
    assert again.out.splitlines()[-1].split(maxsplit=1) == ["lake", f"{lake}: 1 verified run with 1 job"]
    assert (done["lake_runs"], done["lake_jobs"]) == (1, 1)
    assert [audit.json[name] for name in ("lake", "lake_runs", "lake_jobs", "live_jobs")] == [lake, 1, 1, 1]
    read = f"Read the lake {lake}: 1 verified run with 1 job."
    assert would.out.splitlines() == [read, "Would send 1 job again."]
    assert restored.out.splitlines()[:2] == [read, "Sent 1 job again."]
    assert (refused.json["lake_runs"], refused.json["lake_jobs"]) == (1, 1)
    assert (refused.code, refused.json["refused"]) == (1, [str(job.pk)])
    assert Job.objects.get(source_id=job.pk).data == {"n": 1}


def test_a_breach_is_told_with_both_jobs(spark, settings, lake):
    settings.JOBQUEUE = {"LAKE": lake}
    Path(lake).mkdir()
    queue = services.create_fifo_queue("orders")
    first = JobFactory(queue=queue, singleton_key="a")
    second = JobFactory(queue=queue, singleton_key="a", state=JobState.COMPLETED)
    Job.objects.filter(pk=second.pk).update(claim_xmin=second.sent_xid + 1)

    said = jobs("audit")

    assert said.code == 1
    assert f"Read 2 jobs in the live table; the lake {lake} holds no verified run.\n" in said.out
    assert "2 jobs of 1 key: 1 breach." in said.out
    assert "overtaking" in said.out
    assert str(first.pk) in said.out
    assert str(second.pk) in said.out


def test_a_schedule_runs_it_in_a_worker(spark, lake):
    """Java and all are started by a child that was forked, in a thread of it."""
    from django_jobqueue.pipeline import read_lake

    old = JobFactory(queue=QueueFactory(name="mails"), state=JobState.COMPLETED, finalized_at=ago(days=8))
    services.create_queue("nightly", policy="exclusive", retry_limit=0)
    services.create_schedule("archive", "nightly", "15 3 * * *", handler="archive")
    nightly = services.run_schedule("archive")
    assert nightly is not None
    command = [
        sys.executable,
        "-m",
        "django",
        "runjobs",
        "--queue=nightly",
        "--processes=1",
        "--drain",
        "--no-schedules",
    ]
    env = environment() | {"DJANGO_SETTINGS_MODULE": "tests.pipeline.settings", "PIPELINE_LAKE": lake}

    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert ended.returncode == 0, ended.stderr
    done = reread(nightly)
    assert done.state == JobState.COMPLETED, ended.stderr
    assert done.output is not None
    assert done.output["jobs"] == 1
    assert [row.id for row in read_lake(spark, lake).select("id").collect()] == [str(old.pk)]
    assert not Job.objects.filter(pk=old.pk).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux alone")
def test_spark_on_this_machine_goes_behind_everybody_else(session):
    ours = os.getpriority(os.PRIO_PROCESS, 0)

    its = session.sparkContext.parallelize([0]).map(lambda who: os.getpriority(os.PRIO_PROCESS, who)).collect()

    assert its == [max(ours, 1)], "as the settings of the tests say"
    assert os.getpriority(os.PRIO_PROCESS, 0) == ours


def test_without_java_it_is_one_sentence(spark, lake):
    Path(lake).mkdir()

    said = run("audit", "--lake", lake, **without_java())

    assert said.returncode == 5
    assert said.stderr.strip() == (
        "CommandError: Spark needs Java 17 or later, and there is none on the PATH. "
        "Install a JDK or JRE, for example openjdk-17-jre-headless, or set JAVA_HOME to one."
    )


def test_an_old_java_is_named(tmp_path, monkeypatch):
    from django_jobqueue.exceptions import SparkUnavailable
    from django_jobqueue.pipeline.session import check_java

    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=r"is Java 8\."):
        check_java()


def test_without_the_extra_it_is_one_sentence(tmp_path, db):
    """A folder before the others whose pyspark cannot be imported stands for none at all."""
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')")

    said = run("archive", "--lake", str(tmp_path), PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))

    assert said.returncode == 5
    assert said.stderr.strip() == (
        "CommandError: This needs the extra 'spark': No module named 'pyspark'. "
        "Install it: pip install 'django-jobqueue[spark]'."
    )


def test_bad_input_is_refused_before_spark_is_started(db, lake):
    assert "no path is configured" in jobs("archive").error
    assert "the path is empty" in jobs("archive", "--lake", "").error
    assert "'seq' cannot be left out" in jobs("archive", "--lake", lake, "--without", "seq").error
    assert "There is no queue" in jobs("archive", "--lake", lake, "--queue", "nope").error
    assert "ids or filters" in jobs("restore", "--lake", lake).error
    assert "expected a date" in jobs("restore", "--since", "tomorrow").error
