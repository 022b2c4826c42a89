"""The same on a real standalone cluster: a master and two workers, on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job
from tests.waiting import until

from .processes import PATIENCE, Driver, spark_class


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path, spark: object) -> Iterator[str]:
    port = free_port()
    log = tmp_path / "master.log"
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        stack.enter_context(spark_class("master.Master", *master, log=log))
        until(lambda: "I have been elected leader" in log.read_text(), "the master is there", PATIENCE)
        for number in (1, 2):
            worker = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir",
                      str(tmp_path / f"worker{number}"), address)  # fmt: skip
            stack.enter_context(spark_class("worker.Worker", *worker, log=tmp_path / f"worker{number}.log"))
        until(lambda: log.read_text().count("Registering worker") == 2, "both workers are there", PATIENCE)
        yield address


def test_an_archive_on_a_cluster(cluster, spark, lake, tmp_path):
    from django_jobqueue.pipeline import read_lake

    services.create_queue("work")
    ids = services.send_many("work", [{"data": "x" * 900} for _ in range(5_000)])
    services.finish_many([(job, None) for job in services.fetch("work", limit=5_000)])

    answer = Driver(tmp_path, lake, "", cluster).answer()

    assert (answer["written"], answer["deleted"], answer["executors"]) == (5_000, 5_000, 2)
    assert not Job.objects.exists()
    assert {row.id for row in read_lake(spark, lake).select("id").collect()} == {str(id) for id in ids}
    used = [out for out in tmp_path.glob("worker?/app-*/*/stderr") if "Finished task" in out.read_text()]
    assert len(used) == 2, "both workers did some of it"
