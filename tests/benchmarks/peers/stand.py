"""One library at work: its database, a process that sends, and its workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from example_project.postgres import Server
from tests.benchmarks import marks
from tests.benchmarks.lab import note
from tests.benchmarks.marks import Marks
from tests.benchmarks.peers.peer import Peer

ROOT = Path(__file__).parents[3]
STALLED = 60.0  # seconds without any job run
STOP = 30.0
WARM_UP = 20


class WorkerFailed(Exception):
    """A worker ended, or did nothing for a minute; its last lines are in the message."""


def environment(server: Server, database: str, **more: str) -> dict[str, str]:
    """What a process needs to find its database and our modules."""
    env = {**os.environ, **server.env, "PGDATABASE": database, "PYTHONPATH": str(ROOT)}
    env["JOBQUEUE_TEST_DSN"] = psycopg.conninfo.make_conninfo(server.dsn, dbname=database)
    return env | more


class Workers:
    """Processes that run handlers, which write their marks into one file."""

    def __init__(self, commands: Sequence[Sequence[str]], env: Mapping[str, str], jobs: int, folder: Path) -> None:
        self.marks = marks.create(folder / "marks", jobs)
        self._log = folder / "log"
        env = {**env, marks.VARIABLE: str(self.marks.path)}
        with self._log.open("w") as log:
            self._processes = [
                subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                for command in commands
            ]

    @property
    def pids(self) -> list[int]:
        """Of the processes that were started; they may have children."""
        return [process.pid for process in self._processes]

    def wait_for_marks(self, jobs: int | None = None) -> None:
        """Until all jobs have run, or any so many."""
        wanted = len(self.marks) if jobs is None else jobs
        self._wait(wanted, lambda: self._has(wanted), 0.005 if wanted == len(self.marks) else 0.05)

    def wait_for_first(self, jobs: int) -> None:
        """Until every job with a number below this has run."""
        self._wait(jobs, lambda: (missing := self.marks.first_missing()) is None or missing >= jobs, 0.005)

    def _wait(self, wanted: int, is_done: Callable[[], bool], pause: float) -> None:
        seen, since = -1, time.monotonic()
        while not is_done():
            if time.monotonic() - since > 5 and (count := self.marks.count()) != seen:
                seen, since = count, time.monotonic()
            if time.monotonic() - since > STALLED:
                raise WorkerFailed(f"{self.marks.count():,} of {wanted:,} jobs ran, and no more.{self.tail()}")
            if not any(process.poll() is None for process in self._processes) and not is_done():
                raise WorkerFailed(f"it ended after {self.marks.count():,} of {wanted:,} jobs.{self.tail()}")
            time.sleep(pause)

    def wait_until_done(self, dsn: str, unfinished: str) -> int:
        """Until all jobs have run and the database says that they are finished; the moment at which it did.

        Some libraries run their handlers long before they write down that they ran.
        """
        with psycopg.connect(dsn, autocommit=True) as connection:
            self.wait_for_marks()
            return self.wait_until_finished(connection, unfinished)

    def wait_until_finished(self, connection: psycopg.Connection[Any], unfinished: str) -> int:
        """Until the database says that the jobs which ran are finished; the moment at which it did."""
        since = time.monotonic()
        while connection.execute(unfinished).fetchone() is not None:
            if time.monotonic() - since > STALLED:
                raise WorkerFailed(f"all jobs ran, but some were not finished.{self.tail()}")
            time.sleep(0.002)
        return time.time_ns()

    def _has(self, wanted: int) -> bool:
        if wanted < len(self.marks):
            return self.marks.count() >= wanted
        return self.marks.first_missing() is None

    def wait_for_end(self) -> None:
        """Until a worker that leaves by itself has left."""
        for process in self._processes:
            if code := process.wait(timeout=120):
                raise WorkerFailed(f"it ended with {code}.{self.tail()}")

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(timeout=STOP)
            except subprocess.TimeoutExpired:
                note(f"  process {process.pid} does not stop; killed")
                process.kill()
                process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def tail(self) -> str:
        lines = self.log.splitlines()[-15:]
        return "\n" + "\n".join(lines) if lines else ""


@contextmanager
def working(commands: Sequence[Sequence[str]], env: Mapping[str, str], jobs: int) -> Iterator[Workers]:
    """Workers with room for the marks of so many jobs; they are stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as folder:
        workers = Workers(commands, env, jobs, Path(folder))
        try:
            yield workers
        finally:
            workers.stop()


class Stand:
    """A peer with a database of its own on the server."""

    def __init__(self, peer: Peer, python: str, server: Server, database: str) -> None:
        self.peer, self.python, self.database = peer, python, database
        self._env = environment(server, database, BENCH_PEER=peer.name, **peer.env)
        self._dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=database)
        self._folder = ExitStack()
        self._log = Path(self._folder.enter_context(tempfile.TemporaryDirectory(prefix="jobqueue-bench-"))) / "log"
        self._sender = self._start_sender()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._sender.kill()
        self._sender.communicate()
        self._folder.close()

    def install(self) -> None:
        self._ask("install")

    def send_each(self, jobs: int) -> float:
        """Jobs per second, one per transaction."""
        self._ask("empty")
        return float(jobs / self._ask("send_each", 0, jobs))

    def send_bulk(self, jobs: int) -> float:
        self._ask("empty")
        return float(jobs / self._ask("send_bulk", 0, jobs))

    def drain(self, jobs: int, processes: int) -> float:
        """Jobs per second from the moment all processes are at work until the last job is finished."""
        self._fill(jobs)
        with working(self.peer.commands(self.python, processes), self._env, jobs) as workers:
            end = workers.wait_until_done(self._dsn, self.peer.unfinished)
            return rate(workers.marks, processes, end)

    def latencies(self, jobs: int) -> list[float]:
        """Milliseconds from the return of a send until its handler ran, of single jobs sent to one idle process."""
        self._ask("empty")
        total = jobs + WARM_UP
        with working(self.peer.commands(self.python, 1), self._env, total) as workers:
            try:
                found = self._ask("latencies", 0, total, str(workers.marks.path))
            except WorkerFailed as error:
                raise WorkerFailed(f"{error}{workers.tail()}") from error
            return list(found[WARM_UP:])

    def _fill(self, jobs: int) -> None:
        self._ask("empty")
        for start in range(0, jobs, 10_000):
            self._ask("send_bulk", start, min(start + 10_000, jobs))
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")

    def _start_sender(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            return subprocess.Popen(
                [self.python, "-m", "tests.benchmarks.peers.serving", self.peer.module],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _ask(self, *question: Any) -> Any:
        try:
            self._sender.stdin.write(json.dumps(question) + "\n")  # type: ignore[union-attr]
            self._sender.stdin.flush()  # type: ignore[union-attr]
            line = self._sender.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            line = ""
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise WorkerFailed(f"its sender ended at {question[0]}.\n{tail}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer["answer"]


def rate(found: Marks, processes: int, end: int) -> float:
    """Jobs per second; says so if not all processes took part."""
    span = found.span(processes, end)
    if span.processes != processes:
        note(f"  {span.processes} processes ran jobs, not {processes}")
    return span.rate
