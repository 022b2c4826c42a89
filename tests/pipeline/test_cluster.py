"""The same on a real standalone cluster: a master and two workers, on loopback."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job, StagedJob
from tests.faults.runner import ROOT
from tests.past import ago
from tests.waiting import until

from .driver import SMALL
from .processes import PATIENCE, Driver, environment, spark_class

ROWS = 4_000


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def master(folder: Path) -> Iterator[tuple[str, Path]]:
    """A master alone: its address and its log."""
    port = free_port()
    log = folder / "master.log"
    arguments = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    with spark_class("master.Master", *arguments, log=log):
        until(lambda: "I have been elected leader" in log.read_text(), "the master is there", PATIENCE)
        yield f"spark://127.0.0.1:{port}", log


@pytest.fixture
def alone(tmp_path: Path, spark: object) -> Iterator[tuple[str, Path]]:
    """A master that has no workers yet."""
    with master(tmp_path) as made:
        yield made


@contextmanager
def workers(address: str, log: Path, tmp_path: Path) -> Iterator[None]:
    with ExitStack() as stack:
        for number in (1, 2):
            worker = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir",
                      str(tmp_path / f"worker{number}"), address)  # fmt: skip
            stack.enter_context(spark_class("worker.Worker", *worker, log=tmp_path / f"worker{number}.log"))
        until(lambda: log.read_text().count("Registering worker") == 2, "both workers are there", PATIENCE)
        yield


WITHOUT_WORKERS = """
import sys, django
django.setup()
from django_jobqueue.exceptions import SparkUnavailable
from django_jobqueue.pipeline import session
session.EXECUTOR_SECONDS = 2
try:
    with session.spark_session(sys.argv[1]):
        pass
except SparkUnavailable as error:
    print(error)
"""


def test_on_a_cluster(alone, spark, lake, tmp_path):
    """First it has no workers, then two; one master serves both, because each takes seconds to start."""
    address, log = alone
    without_workers_it_is_told_in_two_sentences_instead_of_waited_for(address)
    with workers(address, log, tmp_path):
        a_write_by_spark_submit_and_an_archive(address, spark, lake, tmp_path)


def without_workers_it_is_told_in_two_sentences_instead_of_waited_for(address: str) -> None:
    command = [sys.executable, "-c", WITHOUT_WORKERS, address]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment(), timeout=PATIENCE, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == (
        f"{address} provided no executor within 2 seconds. Check that its workers run and have "
        "spark.executor.memory and spark.executor.cores to spare."
    )


def a_write_by_spark_submit_and_an_archive(cluster: str, spark: Any, lake: str, tmp_path: Path) -> None:
    """The master that spark-submit was given is the one that is used."""
    from django_jobqueue.pipeline import read_lake

    services.create_fifo_queue("work")

    assert submitted(cluster, "writer.py", str(ROWS)) == cluster

    assert not StagedJob.objects.exists()
    assert list(Job.objects.order_by("seq").values_list("data__n", flat=True)) == list(range(ROWS))
    Job.objects.update(state="completed", hold=None, finalized_at=ago(days=1))  # past the verbs, to be quick

    answer = Driver(tmp_path, lake, "", cluster).answer()

    assert (answer["written"], answer["deleted"], answer["executors"]) == (ROWS, ROWS, 2)
    assert not Job.objects.exists()
    assert read_lake(spark, lake).select("id").distinct().count() == ROWS
    used = {out.parts[-4] for out in tmp_path.glob("worker?/app-*/*/stderr") if "Finished task" in out.read_text()}
    assert used == {"worker1", "worker2"}, "both workers did some of it"


def test_a_driver_that_is_killed_before_its_commit_has_sent_nothing(spark, tmp_path):
    services.create_fifo_queue("work")
    command = [sys.executable, "-m", "tests.pipeline.writer", "2000", "die"]
    env = environment() | {"MASTER": "local[2,4]"}

    ended = subprocess.run(
        command, cwd=ROOT, env=env, start_new_session=True, timeout=PATIENCE, capture_output=True, check=False
    )

    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert StagedJob.objects.count() == 2_000
    assert not Job.objects.exists()


def submitted(master: str, script: str, *arguments: str) -> str:
    """Run a script by spark-submit, and return the last line it printed."""
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master]
    for name, value in SMALL.items():
        command += ["--conf", f"{name}={value}"]
    env = environment() | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(Path(__file__).parent / script), *arguments],
        cwd=ROOT, env=env, timeout=PATIENCE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()[-1]
