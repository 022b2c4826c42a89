"""A transaction stays open for long, or the database comes from a dump."""

from __future__ import annotations

import subprocess
import time

import pytest

from example_project.postgres import throwaway

from . import history
from .cluster import Cluster
from .runner import QUICK, Laboratory, until

JOBS = 3_000


def rate(lab: Laboratory, prefix: str) -> float:
    """Jobs per second of an idle worker that finds them all at once."""
    lab.send("work", keys=JOBS, each=1, prefix=prefix)
    began = time.monotonic()
    until(lambda: not lab.cluster.unfinished(), "all are done", 40)
    return JOBS / (time.monotonic() - began)


def test_a_long_open_snapshot_does_not_halve_the_speed(lab: Laboratory):  # G12, F24
    lab.worker()
    rate(lab, "warm")
    before = max(rate(lab, "a"), rate(lab, "b"))
    with lab.cluster.connect() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM jobqueue_job")
        during = [rate(lab, f"held{n}") for n in range(4)]
        other.execute("ROLLBACK")
    after = max(rate(lab, "c"), rate(lab, "d"))

    print(f"jobs/s: before {before:.0f}, during {[round(one) for one in during]}, after {after:.0f}")
    assert max(during[2:]) > before / 2
    assert after > before / 2
    assert lab.check() == 0


def test_active_jobs_of_a_restored_dump_are_recovered(lab: Laboratory):  # F39
    worker = lab.worker(settings=QUICK)
    for key in ("a", "b", "c"):
        lab.send_one("orders", "step", 0, key=key, once=60)
        lab.send_one("orders", "step", 1, key=key)
    until(lambda: lab.has_run(3), "they run")
    server = lab.cluster.server
    dump = subprocess.check_output(
        [server.program("pg_dump"), f"--dbname={lab.cluster.dsn()}", "--format=custom", "--no-sync"]
    )
    worker.end()
    lab.history_file.unlink()

    with throwaway(server.version) as other:
        restored = Cluster(other)
        subprocess.run([other.program("pg_restore"), f"--dbname={restored.dsn()}"], input=dump, check=True)
        laboratory = Laboratory(restored, lab.folder)
        assert restored.active() == 3
        try:
            laboratory.worker("new", settings=QUICK)
            until(lambda: not restored.unfinished(), "all are done", 20)
        finally:
            laboratory.close()
            restored.close()
            print([(line.text, line.facts) for line in laboratory.workers[0].lines()])
        assert history.check([run for run in laboratory.runs() if run.attempt > 1 or run.n], {}) == 0
        assert len(laboratory.runs()) == 6
    lab.cluster.empty()


def test_a_worker_finds_its_database_replaced_by_an_older_dump(lab: Laboratory):  # F39
    """The row of its process is not in there: it starts anew under another number."""
    worker = lab.worker(settings=QUICK)
    lab.send_one("orders", "step", key="a", once=60)
    until(lambda: lab.has_run(1), "it runs")

    lab.cluster.sql("DELETE FROM jobqueue_worker")
    lab.cluster.sql("UPDATE jobqueue_job SET state = 'created', attempt = 0, assignee = '', incarnation = NULL")

    until(lambda: worker.rows() == 1, "it is registered anew", 10)
    until(lambda: any("treated as lost" in line.text for line in worker.lines()), "its handlers are ended", 10)
    assert worker.is_running()


@pytest.fixture(autouse=True)
def _statistics(lab: Laboratory) -> None:
    lab.cluster.sql("ALTER SYSTEM SET autovacuum = off")
    lab.cluster.sql("SELECT pg_reload_conf()")
