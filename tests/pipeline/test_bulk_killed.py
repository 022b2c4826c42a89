"""A bulk send is killed while it stages rows and right after its commit: sent again, every row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from django_jobqueue import services
from django_jobqueue.models import Job, StagedJob
from tests.faults.runner import ROOT

from .processes import PATIENCE, environment

ROWS = 3_000


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = ["jobs", "bulk_send", f"{folder}/*.csv", "--queue", "work", "--key", "k", "--yes"]
    options = ["--master", "local[2]", "--aside", f"{folder}/aside"]
    quick = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "django", *command, *options], cwd=ROOT, env=environment() | quick,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def kill_when(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """With every process of its group: Spark's too."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)


def test_killed_anywhere_every_row_is_sent_once(spark, tmp_path):
    from django_jobqueue.pipeline import Mapping, bulk_send

    services.create_fifo_queue("work")
    for file in range(3):
        rows = "".join(
            f"k{row % 50},{row % 1_000},{file}\n" for row in range(file, ROWS, 3)
        )  # most of them more than once
        (tmp_path / f"{file}.csv").write_text(f"k,n,file\n{rows}")

    kill_when(start(tmp_path), StagedJob.objects.exists)
    assert not Job.objects.exists()
    kill_when(start(tmp_path), Job.objects.exists)
    assert Job.objects.count() == ROWS
    done = bulk_send([f"{tmp_path}/*.csv"], queue="work", mapping=Mapping(key="k"), spark=spark)

    assert (done.sent, done.known) == (0, ROWS), (tmp_path / "log").read_text()[-3_000:]
    found = sorted((job.singleton_key, job.data["n"], job.data["file"]) for job in Job.objects.all().iterator())
    assert found == sorted(
        (f"k{row % 50}", str(row % 1_000), str(file)) for file in range(3) for row in range(file, ROWS, 3)
    )
    assert [job.data["n"] for job in Job.objects.filter(singleton_key="k0", data__file="0").order_by("seq")] == [
        str(row % 1_000) for row in range(0, ROWS, 3) if row % 50 == 0
    ]
