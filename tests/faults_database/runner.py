"""Starts real workers, sends them jobs, and looks at what became of both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django_jobqueue import services

from . import history, logs
from .cluster import ALIAS, PATIENT, Cluster

ROOT = Path(__file__).parent.parent.parent

# Everything that takes seconds takes less, in the same proportions.
QUICK = {
    "WORKER_HEARTBEAT_SECONDS": 0.3,
    "WORKER_FENCE_SECONDS": 2.0,
    "WORKER_UNLOCKED_SECONDS": 3.0,
    "WORKER_LOST_SECONDS": 5.0,
    "POLL_SECONDS": 0.25,
    "EXPIRE_GRACE_SECONDS": 1.0,
    "STOP_GRACE_SECONDS": 5,
}


def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Look again and again until ``condition`` is true, and return what it said."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {what}"
        time.sleep(0.05)


class WorkerProcess:
    """A ``runjobs`` in a session of its own."""

    def __init__(self, lab: Laboratory, name: str, arguments: list[str], env: dict[str, str]) -> None:
        self.lab, self.name = lab, name
        self.log = lab.folder / f"{name}.log"
        self.output = lab.folder / f"{name}.out"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "runjobs", f"--name={name}", *arguments],
                cwd=ROOT,
                env={**os.environ, **env, "FAULTS_LOG": str(self.log)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def lines(self) -> list[logs.Line]:
        return logs.read(self.log)

    def family(self) -> dict[int, str]:
        """Its processes: who they are, and when the kernel says they began."""
        ours = [self.process.pid]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        ours += [int(pid) for pid in children.read_text().split()]
        found = {}
        for pid in ours:
            with suppress(OSError):  # it has just ended
                found[pid] = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        return found

    def cpu_seconds(self) -> float:
        ticks = 0
        for pid in self.family():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def rows(self) -> int:
        query = "SELECT count(*) FROM jobqueue_worker WHERE stopped_at IS NULL AND (name = %s OR name LIKE %s)"
        return int(self.lab.cluster.one(query, [self.name, f"{self.name}/%"]))

    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self, seconds: float = 20.0) -> int:
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def end(self) -> None:
        if self.is_running():
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


class Laboratory:
    """The workers of one test, and the history their handlers write."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.workers: list[WorkerProcess] = []
        self.sent: dict[str, int] = {}

    @property
    def history_file(self) -> Path:
        return self.folder / "history"

    def worker(
        self,
        name: str = "w",
        *arguments: str,
        port: int | None = None,
        user: str = "postgres",
        settings: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        processes: int = 1,
        wait: bool = True,
    ) -> WorkerProcess:
        """Start one, and wait until it is known to the database."""
        given = {
            "DJANGO_SETTINGS_MODULE": "tests.faults_database.settings",
            "FAULTS_DSN": self.cluster.dsn(port=port, user=user),
            "FAULTS_JOBQUEUE": json.dumps(settings or {}),
            "FAULTS_HISTORY": str(self.history_file),
            "PYTHONPATH": str(ROOT),
            **(env or {}),
        }
        worker = WorkerProcess(self, name, [f"--processes={processes}", *arguments], given)
        self.workers.append(worker)
        if wait:
            until(lambda: worker.rows() == processes, f"worker {name} is registered\n{worker.output.read_text()}")
        return worker

    def close(self) -> None:
        for worker in self.workers:
            worker.end()

    # ---------------------------------------------------------------------------------------------------- jobs

    def send(self, queue: str, keys: int, each: int, *, seconds: float = 0.0, prefix: str = "k") -> None:
        """Send ``each`` jobs with each of ``keys`` keys, numbered in their order."""
        names = {"orders": "step", "ledger": "book", "work": "plain"}
        items: list[Any] = []
        for n in range(each):
            for key in range(keys):
                item = {"name": names[queue], "data": {"n": n, "seconds": seconds}, "singleton_key": f"{prefix}{key}"}
                items.append({**item, **PATIENT})
        for start in range(0, len(items), 5_000):
            services.send_many(queue, items[start : start + 5_000], using=ALIAS)
        self.sent |= {f"{prefix}{key}": each for key in range(keys)}

    def send_one(self, queue: str, name: str, n: int = 0, *, key: str = "", **data: Any) -> str:
        options: dict[str, Any] = {"singleton_key": key} if key else {}
        job = services.send(queue, {"n": n, **data}, name=name, using=ALIAS, **options, **PATIENT)
        assert job is not None
        if key:
            self.sent[key] = max(self.sent.get(key, 0), n + 1)
        return str(job.pk)

    def runs(self) -> list[history.Run]:
        return history.read(self.history_file)

    def has_run(self, n: int) -> bool:
        return history.begun(self.history_file) >= n

    def wait_until_done(self, seconds: float = 40.0) -> None:
        until(lambda: not self.cluster.unfinished(), "all jobs are completed", seconds)

    def check(self) -> int:
        """The laws, over all that ran; how many runs were repeated."""
        assert self.cluster.unfinished() == 0
        runs = self.runs()
        history.check_finished(runs, self.sent)
        return history.check(runs, self.sent)
