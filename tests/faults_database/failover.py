"""Two workers and two senders under steady load, while their server fails over."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.db import Error, connections

from django_jobqueue import services
from django_jobqueue.exceptions import DuplicateJob
from tests.waiting import until

from .cluster import ALIAS, PATIENT, Cluster
from .runner import Laboratory, WorkerProcess
from .tracked import Findings, after, read_rows, read_runs

# Shorter than the defaults and in the same proportions; handlers outlive a promotion, which takes less than a second.
TIMINGS = {
    "WORKER_HEARTBEAT_SECONDS": 0.5,
    "WORKER_FENCE_SECONDS": 3.0,
    "WORKER_UNLOCKED_SECONDS": 4.5,
    "WORKER_LOST_SECONDS": 8.0,
    "POLL_SECONDS": 0.25,
    "EXPIRE_GRACE_SECONDS": 1.0,
    "STOP_GRACE_SECONDS": 5,
    "HAND_OVER_LIMIT": 2,  # so that both hand-overs and fetches are among the claims that are lost
}
HANDLERS = {"orders": "tracked", "ledger": "tracked_atomic"}
KEYS = {"orders": 20, "ledger": 8}
CONCURRENCY = 4  # times four processes: fewer handlers than keys, so that waiting jobs are fetched all the time
SECONDS = (0.2, 1.5)  # that a handler takes
BACK = "database is back"


class Sender(threading.Thread):
    """Sends jobs of one queue, each key's numbered in their order, until told to stop.

    A send whose answer was lost is sent again with the same id, as a careful sender does: so no later job of its key
    is sent before it is known to be stored.
    """

    def __init__(self, queue: str, chance: random.Random) -> None:
        super().__init__(name=f"sender-{queue}", daemon=True)
        self.queue, self.chance = queue, chance
        self.acknowledged: dict[str, float] = {}  # job → when its send was
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            for n in itertools.count():
                for key in range(KEYS[self.queue]):
                    if self._stopping.wait(self._pause(n)):
                        return
                    self._send(f"{self.queue}-{key}", n)
        finally:
            connections[ALIAS].close()

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        assert not self.is_alive(), "a sender does not stop"

    def _pause(self, n: int) -> float:
        """A backlog of three jobs per key at first, then about one in three seconds."""
        return 0.0 if n < 3 else 3.0 / KEYS[self.queue]

    def _send(self, key: str, n: int) -> None:
        id, data = uuid4(), {"n": n, "seconds": round(self.chance.uniform(*SECONDS), 2)}
        options: dict[str, Any] = {"name": HANDLERS[self.queue], "singleton_key": key, **PATIENT}
        while not self._stopping.is_set():
            try:
                services.send(self.queue, data, id=id, using=ALIAS, **options)
            except DuplicateJob:
                pass  # the first try was stored, only its answer was lost
            except Error:
                connections[ALIAS].close()
                self._stopping.wait(0.1)
                continue
            self.acknowledged[str(id)] = time.monotonic()
            return


class Load:
    """The workers and senders of one run, and what they are found to have done."""

    def __init__(self, cluster: Cluster, folder: Path, chance: random.Random, *, right: int | None = None) -> None:
        self.cluster = cluster
        self.ports = {"left": None, "right": right}  # where a worker connects, if not to the servers themselves
        self.lab = Laboratory(cluster, folder)
        self.senders = [Sender(queue, random.Random(chance.random())) for queue in HANDLERS]
        self.families: dict[str, set[int]] = {}
        self._delayed: dict[str, float] = {}

    def start(self) -> None:
        for name, port in self.ports.items():
            flags = [f"--concurrency={CONCURRENCY}"]
            env = {"FAULTS_NOTE_RECORDED": "1"}
            self.lab.worker(name, *flags, port=port, settings=TIMINGS, env=env, processes=2, wait=False)
        until(self._are_registered, "both workers are registered", 30)
        self.families = {worker.name: set(worker.family()) for worker in self.lab.workers}
        for sender in self.senders:
            sender.start()

    def _are_registered(self) -> bool:
        for worker in self.lab.workers:
            assert worker.is_running(), worker.output.read_text()
        return all(worker.rows() == 2 for worker in self.lab.workers)

    def send_delayed(self, delay: float, seconds: float, *, keys: int = 8) -> None:
        """Jobs of so many seconds that are fetched as soon as they are due, each with a short one behind it."""
        for n, key in itertools.product(range(2), range(keys)):
            queue = "orders" if key % 2 else "ledger"
            options: dict[str, Any] = {"name": HANDLERS[queue], "singleton_key": f"delayed-{key}", **PATIENT}
            data = {"n": n, "seconds": seconds if n == 0 else 0.2}
            job = services.send(queue, data, delay=delay, priority=1, using=ALIAS, **options)
            assert job is not None
            self._delayed[str(job.pk)] = time.monotonic()

    def close(self) -> None:
        for sender in self.senders:
            if sender.is_alive():
                sender.stop()
        self.lab.close()

    def run_for(self, seconds: float) -> None:
        """Let work go on for a while; time is the subject here, nothing is waited for."""
        time.sleep(seconds)

    def wait_until_busy(self) -> None:
        """Until jobs have ended, and so were handed over and fetched anew."""
        enough = sum(KEYS.values())
        until(lambda: sum(run.how == "ended" for run in self.runs()) >= enough, "work is going on", 30)

    def wait_until_reconnected(self, lost: float) -> float:
        """Wait until every process of the workers has found the database again; returns when the last one had.

        ``lost``: when the server was killed.
        """
        moments = until(lambda: self._reconnected(lost), "all processes have found the database again", 30)
        return max(moments)

    def _reconnected(self, lost: float) -> list[float]:
        moments: list[float] = []
        for worker in self.lab.workers:
            back = {line.pid: line.at for line in worker.lines() if line.at > lost and line.text.startswith(BACK)}
            awaited = set(worker.family()) - {worker.process.pid}
            awaited &= self.families[worker.name]  # a process that was replaced has not lost anything
            if awaited - back.keys():
                return []
            moments += back.values()
        return moments or [lost]

    def finish(self) -> Findings:
        """Stop the senders, wait until all jobs are completed, and compare the history with the database."""
        for sender in self.senders:
            sender.stop()
        connections[ALIAS].close()
        until(lambda: not self.cluster.unfinished(), "all jobs are completed", 40)
        return Findings(self.runs(), read_rows(self.cluster))

    def slowest_to_resume(self, findings: Findings, since: float) -> float:
        """How long after that moment the last of the children that ran handlers before it has begun another.

        One that was replaced meanwhile, because the server was away for too long on a busy machine, does not count. One
        that got nothing more to do has resumed, at the latest, when the work was done.
        """
        children = {run.pid for run in findings.runs if run.began < since}
        children &= {pid for worker in self.lab.workers for pid in worker.family()}
        done = max(run.began for run in findings.runs)
        return max((min(findings.first_after(since, pid), done) - since for pid in children), default=0.0)

    def runs(self) -> list[Any]:
        return read_runs(self.lab.history_file)

    def sent(self) -> dict[str, float]:
        sent = dict(self._delayed)
        for sender in self.senders:
            sent |= sender.acknowledged
        return sent

    def effects_not_once(self) -> list[tuple[Any, ...]]:
        """Completed jobs of atomic handlers whose work is not there exactly once."""
        query = (
            "SELECT j.id, count(e.job) FROM jobqueue_job j LEFT JOIN effect e ON e.job = j.id"
            " WHERE j.queue_id = 'ledger' GROUP BY j.id HAVING count(e.job) <> 1"
        )
        return self.cluster.sql(query)


@contextmanager
def loaded(cluster: Cluster, folder: Path, seed: random.Random, *, right: int | None = None) -> Iterator[Load]:
    """``right``: the port at which the worker of that name connects."""
    load = Load(cluster, folder, seed, right=right)
    try:
        load.start()
        yield load
    finally:
        load.close()
        for worker in load.lab.workers:
            _show(worker)


def _show(worker: WorkerProcess) -> None:
    """What it logged, for a test that failed."""
    print(f"--- {worker.name}\n{worker.output.read_text()}")
    for line in worker.lines()[-80:]:
        print(f"{line.at:.2f} {line.pid} {line.text} {line.facts} {line.error}")


def summary(load: Load, findings: Findings, reconnected: float) -> str:
    """The figures of one run in one line; of overlaps, how many were still going on after workers were back."""
    job_overlaps, key_overlaps = findings.job_overlaps, findings.key_overlaps
    figures = {
        "jobs": len(findings.rows),
        "runs": len(findings.runs),
        "repeated": findings.repeated(),
        "sends lost": len(findings.lost(load.sent())),
        "completions lost": len(findings.reopened()),
        "stale accepted": len(findings.stale),
        "claims run twice": len(findings.claims_run_twice),
        "job overlaps": f"{len(job_overlaps)} ({len(after(job_overlaps, reconnected))} after)",
        "key overlaps": f"{len(key_overlaps)} ({len(after(key_overlaps, reconnected))} after)",
        "out of order": len(findings.out_of_order),
        "charged": len(findings.charged()),
        "resumed after": f"{load.slowest_to_resume(findings, reconnected):.1f} s",
    }
    return "FAILOVER " + ", ".join(f"{name} {figure}" for name, figure in figures.items())
