"""Whether one locked row or key delays other keys: ``make bench ARGS=locked``.

Jobs of other keys are sent all the time, and the time from each send to the end of its handler is taken, while nothing
is locked and while another session holds, in an open transaction, the row of a waiting job, the lock of a key, or the
rows of two keys. Beside that: how soon after the end of that transaction the lane itself goes on, and whether a worker
reported a stranded lane.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from example_project.postgres import Server
from tests.benchmarks import processor_time
from tests.benchmarks.lab import laboratory, note
from tests.benchmarks.peers.peer import OURS, TEXT
from tests.benchmarks.peers.stand import Workers, environment, working
from tests.benchmarks.peers.suite import percentile

SECONDS = 20.0
BAR = 2.0  # how many times as long other keys may take
LANE_BAR = 2.0  # seconds until the lane goes on
PAUSE = (0.01, 0.03)  # seconds between two sends
FREE_KEYS = 20
ROOM = 200_000  # for the marks of all jobs of a scene
LATE = 5.0  # seconds after which a job of another key counts as that late
SLOW = 2.0  # seconds that a job runs during which the rest is set up
MANY = 3_000  # jobs of one key in front of the others
STRANDED = ("stranded",)
PATIENCE = 60.0
QUEUE = "ordered"
RUNJOBS = ("django", "runjobs", "--no-schedules", "--processes=1")


@dataclass(frozen=True)
class Scene:
    """Who works on the ordered queue, and what is done to a lane."""

    name: str
    title: str
    run: Callable[[Stage, int], Lane]  # sets up a lane; what comes after its first job is to be locked
    free: str = "bench_ordered"  # the handler of other keys
    slow: str = "bench_slow"
    commands: tuple[tuple[str, ...], ...] = ((*RUNJOBS, f"--queue={QUEUE}"),)
    begin: Callable[[Stage, Sequence[Lane]], None] | None = None  # done when all is locked
    beside: bool = True  # whether there is such a lane also when nothing is locked


@dataclass
class Lane:
    """A key: the row that a session locks, and the number of the job that shows that the lane goes on."""

    key: str
    row: UUID
    number: int
    head: UUID | None = None  # what runs or waits before it


@dataclass
class Outcome:
    """What one kind of lock did to one scene."""

    scene: str
    lock: str
    p50: float
    p99: float
    beside_p50: float
    beside_p99: float
    cpu: float  # processor time per second, of the server and the workers
    beside_cpu: float
    lane_seconds: float
    stranded: bool

    @property
    def ratios(self) -> tuple[float, float]:
        return self.p50 / self.beside_p50, self.p99 / self.beside_p99

    @property
    def problems(self) -> list[str]:
        found = []
        if max(self.ratios) > BAR:
            found.append("other keys were delayed")
        if self.lane_seconds > LANE_BAR:
            found.append("the lane went on late")
        if self.stranded:
            found.append("a stranded lane was reported")
        return found


class Measured(NamedTuple):
    """Milliseconds of each job of another key, processor time per second, and seconds until the lanes went on."""

    took: list[float]
    cpu: float
    lane_seconds: float


LOCKS = {"one row": ("row",), "one key": ("key",), "two rows": ("row", "row")}


def main(arguments: Sequence[str]) -> int:
    names = [scene.name for scene in SCENES]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks locked", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long each lock is held ({SECONDS:g})")
    parser.add_argument("--scene", nargs="+", choices=names, default=names, help="all by default")
    parser.add_argument("--lock", nargs="+", choices=list(LOCKS), default=list(LOCKS), help="all by default")
    parser.add_argument("--json", type=Path, default=Path("bench-locked.json"))
    options = parser.parse_args(arguments)
    chosen = [scene for scene in SCENES if scene.name in options.scene]
    found: list[Outcome] = []
    with laboratory([_database(scene) for scene in chosen]) as server:
        for scene in chosen:
            found += _measure(scene, server, options.lock, options.seconds)
    _report(found)
    options.json.write_text(json.dumps([asdict(outcome) for outcome in found], indent=2) + "\n")
    print(f"\nwritten to {options.json}")
    return 1 if any(outcome.problems for outcome in found) else 0


def _database(scene: Scene) -> str:
    return f"locked_{scene.name}"


def _measure(scene: Scene, server: Server, locks: Sequence[str], seconds: float) -> list[Outcome]:
    """One worker for all kinds of locks; each is compared with the time before it and the time after it."""
    note(f"locked: {scene.title}")
    database = _database(scene)
    env = environment(server, database, **OURS.env)
    commands = [[sys.executable, "-m", *command] for command in scene.commands]
    found = []
    with working(commands, env, ROOM) as workers:
        stage = Stage(scene, database, server, workers)
        stage.warm_up()
        before = stage.under((), seconds)
        for lock in locks:
            alarms = stage.alarms()
            under = stage.under(LOCKS[lock], seconds)
            stranded = stage.alarms() > alarms
            after = stage.under((), seconds)
            figures = *_figures(under.took), *_figures(before.took + after.took)
            cpu = under.cpu, (before.cpu + after.cpu) / 2
            found.append(Outcome(scene.title, lock, *figures, *cpu, under.lane_seconds, stranded))
            before = after
    return found


def _figures(times: list[float]) -> tuple[float, float]:
    return statistics.median(times), percentile(times, 99)


class Stage:
    """A worker at its work, and a sender that keeps it busy with other keys."""

    def __init__(self, scene: Scene, using: str, server: Server, workers: Workers) -> None:
        from django_jobqueue import services

        self.scene, self.using, self.workers = scene, using, workers
        self.dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=using)
        self.postmaster = int((server.data / "postmaster.pid").read_text().splitlines()[0])
        self._numbers = iter(range(ROOM))
        self._lanes = iter(range(ROOM))
        self.released_at = 0  # when the last lock was given up, in nanoseconds
        services.create_fifo_queue(QUEUE, using=using)
        services.create_queue("plain", using=using)
        self.execute("CREATE TABLE bench_effect (n int NOT NULL)")

    def number(self) -> int:
        return next(self._numbers)

    def execute(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    def send(self, key: str, name: str, **data: Any) -> tuple[UUID, int]:
        from django_jobqueue import services

        number = self.number()
        job = services.send(QUEUE, {"n": number, **data}, name=name, singleton_key=key, using=self.using)
        if job is None:
            raise AssertionError("a job was refused")
        return job.pk, number

    def send_free(self) -> int:
        return self.send(f"free{random.randrange(FREE_KEYS)}", self.scene.free, text=TEXT)[1]

    def ran(self, number: int) -> int:
        return self.workers.marks.ran(number)

    def warm_up(self) -> None:
        """Until all that works on the queue has started and is quick."""
        for _ in range(50):
            number = self.send_free()
            self.until(lambda number=number: self.ran(number), "a job of a free key ran")  # type: ignore[misc]

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"in vain waited until {what}.{self.workers.tail()}")
            time.sleep(0.002)

    def state_of(self, id: UUID) -> tuple[str, str | None]:
        [(state, hold)] = self.execute("SELECT state, hold FROM jobqueue_job WHERE id = %s", [id])
        return state, hold

    def alarms(self) -> int:
        return sum(self.workers.log.count(text) for text in STRANDED)

    def under(self, locks: Sequence[str], seconds: float) -> Measured:
        """What jobs of other keys took under these locks.

        Without locks a lane is set up as well, so that what is done to it is part of both sides.
        """
        lanes = [self.scene.run(self, next(self._lanes)) for _ in locks or ["none"] * self.scene.beside]
        with ExitStack() as locked:
            for lock, lane in zip(locks, lanes, strict=False):
                locked.enter_context(self.locked(lock, lane))
            if self.scene.begin is not None:
                self.scene.begin(self, lanes)
            began, used = time.monotonic(), self._processor_time()
            took = self._latencies(seconds)
            cpu = (self._processor_time() - used) / (time.monotonic() - began)
            early = [lane.key for lane in lanes if locks and self.ran(lane.number)]
            if early:
                raise AssertionError(f"jobs of {early} ran although they were locked")
        for lane in lanes:
            self.until(lambda lane=lane: self.ran(lane.number), f"lane {lane.key} went on")  # type: ignore[misc]
        last = max((self.ran(lane.number) for lane in lanes), default=0)
        lane_seconds = max(0.0, (last - self.released_at) / 1e9)
        self.until(self._is_drained, "all jobs were finished")
        name = next((name for name, kinds in LOCKS.items() if kinds == tuple(locks)), "no lock")
        note(
            f"  {name}: {len(took)} jobs of other keys, p50 {statistics.median(took):.1f} ms, "
            f"p99 {percentile(took, 99):.1f} ms, {cpu:.1%} of a processor"
            + (f", lane after {lane_seconds:.2f} s" if locks else "")
        )
        return Measured(took, cpu, lane_seconds)

    def _processor_time(self) -> float:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            used = processor_time.of_backends(connection, self.postmaster)
        return used + sum(processor_time.of_tree(pid) for pid in self.workers.pids)

    def _is_drained(self) -> bool:
        return not self.execute("SELECT 1 FROM jobqueue_job WHERE state IN ('created', 'active', 'retry') LIMIT 1")

    @contextmanager
    def locked(self, lock: str, lane: Lane) -> Iterator[None]:
        """Another session holds the row or the key until the end of the block."""
        from django_jobqueue.engine.sql.lanes import KEY_HASH

        with psycopg.connect(self.dsn) as other:
            if lock == "row":
                other.execute("SELECT 1 FROM jobqueue_job WHERE id = %s FOR UPDATE", [lane.row])
            else:
                hash = KEY_HASH.format(key="%s", queue="%s")
                other.execute(f"SELECT pg_advisory_xact_lock({hash})", [lane.key, QUEUE])
            yield
            self.released_at = time.time_ns()
            other.rollback()

    def _latencies(self, seconds: float) -> list[float]:
        sent: dict[int, int] = {}
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            began = time.time_ns()
            sent[self.send_free()] = began
            time.sleep(random.uniform(*PAUSE))
        give_up = time.monotonic() + LATE
        while not all(map(self.ran, sent)) and time.monotonic() < give_up:
            time.sleep(0.01)
        now = time.time_ns()
        return [((self.ran(number) or now) - began) / 1e6 for number, began in sent.items()]


# ---------------------------------------------------------------------------------------------------------- scenes


def _behind_a_running_job(stage: Stage, number: int) -> Lane:
    """A job runs, and the one behind it is held for its lane; the first ends while the rest is locked."""
    key = f"held{number}"
    head, _ = stage.send(key, stage.scene.slow, seconds=SLOW)
    stage.until(lambda: stage.state_of(head)[0] == "active", "the first job of a lane ran")
    row, next_number = stage.send(key, stage.scene.free, text=TEXT)
    stage.until(lambda: stage.state_of(row) == ("created", "lane"), "the next job of a lane was held")
    return Lane(key, row, next_number, head)


def _with_many_in_front(stage: Stage, number: int) -> Lane:
    """Thousands of jobs of one key, each as if it was sent alone, in front of all others."""
    from django_jobqueue import services

    key = f"many{number}"
    services.pause(QUEUE, using=stage.using)
    first, rest = stage.number(), stage.number()
    items: list[services.Item] = [
        {"data": {"n": first if place == 0 else rest, "text": TEXT}, "name": stage.scene.free, "singleton_key": key}
        for place in range(MANY)
    ]
    row = services.send_many(QUEUE, items, using=stage.using)[0]
    if row is None:
        raise AssertionError("a job was refused")
    stage.execute("UPDATE jobqueue_job SET hold = NULL WHERE singleton_key = %s", [key])
    return Lane(key, row, first)


def _resume(stage: Stage, lanes: Sequence[Lane]) -> None:
    from django_jobqueue import services

    services.resume(QUEUE, using=stage.using)


def _cancelled_and_running(stage: Stage, number: int) -> Lane:
    """A job that ignores its cancellation: when its process dies, the sweep must let the next one go."""
    from django_jobqueue import services

    key = f"swept{number}"
    head, _ = stage.send(key, stage.scene.slow, seconds=3600)
    stage.until(lambda: stage.state_of(head)[0] == "active", "the first job of a lane ran")
    row, next_number = stage.send(key, stage.scene.free, text=TEXT)
    stage.until(lambda: stage.state_of(row) == ("created", "lane"), "the next job of a lane was held")
    services.cancel(head, using=stage.using)
    return Lane(key, row, next_number, head)


def _kill_child(stage: Stage, lanes: Sequence[Lane]) -> None:
    """The only one: until there is another, jobs of all keys wait, with and without locks."""
    query = "SELECT w.pid FROM jobqueue_job j JOIN jobqueue_worker w ON w.id = j.incarnation WHERE j.id = ANY(%s)"
    for pid in {pid for (pid,) in stage.execute(query, [[lane.head for lane in lanes]])}:
        os.kill(pid, signal.SIGKILL)


SCENES = [
    Scene("batch", "batch finish by runjobs", _behind_a_running_job),
    Scene(
        "complete",
        "complete() in a loop",
        _behind_a_running_job,
        commands=((*RUNJOBS, "--queue=plain"), ("tests.benchmarks.fetch_loop",)),
    ),
    Scene(
        "atomic",
        "atomic handlers by runjobs",
        _behind_a_running_job,
        free="bench_ordered_effect",
        slow="bench_slow_effect",
    ),
    Scene(
        "fetch",
        f"fetch beside a due job with {MANY:,} of its key",
        _with_many_in_front,
        begin=_resume,
        beside=False,  # those would be run while others are measured
    ),
    Scene(
        "sweep",
        "sweep after a child was killed",
        _cancelled_and_running,
        begin=_kill_child,
    ),
]


def _report(found: Sequence[Outcome]) -> None:
    width = max(len(outcome.scene) for outcome in found)
    print(
        f"\n{'':{width}}  {'locked':9} {'p50 ms':>15} {'ratio':>6} {'p99 ms':>17} {'ratio':>6} {'processors':>13}"
        f"  lane after  bar {BAR:g}"
    )
    for outcome in found:
        half, most = outcome.ratios
        verdict = f"MISSED: {', '.join(outcome.problems)}" if outcome.problems else "met"
        print(
            f"{outcome.scene:{width}}  {outcome.lock:9} {outcome.beside_p50:6.1f} → {outcome.p50:6.1f} {half:6.2f} "
            f"{outcome.beside_p99:7.1f} → {outcome.p99:7.1f} {most:6.2f} "
            f"{outcome.beside_cpu:5.2f} → {outcome.cpu:5.2f} {outcome.lane_seconds:8.2f} s   {verdict}"
        )
