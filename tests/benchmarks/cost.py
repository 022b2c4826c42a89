"""What a change costs: processor time per job of two source trees, by turns on one server.

``make bench ARGS="cost --before main"`` compares this tree with the commit ``main``. Processor time shows differences
of a few percent, which rates do not show.

In every pair, a worker of each tree is started anew, on a paused queue. Then both drain small slices of jobs by turns,
so that a slow second of the machine hits both. The clocks are read before the queue is resumed and when all jobs of
the slice are finished: starting the interpreter, importing and connecting are not measured. The workload ``send`` has
no worker: the process that fills the queue sends jobs one by one, each in a transaction of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from example_project.postgres import Server, throwaway
from tests.benchmarks import processor_time
from tests.benchmarks.lab import SETTINGS, note
from tests.benchmarks.peers.stand import ROOT, WorkerFailed, Workers, working
from tests.benchmarks.source_tree import SourceTree, source

PAIRS = 15
SLICES = 6
BAR = 1.03
RESAMPLES = 10_000
IDLE = 0.01  # a worker that uses less than this part of a processor is idle
UNFINISHED = "SELECT 1 FROM jobqueue_job WHERE state IN ('created', 'active', 'retry') LIMIT 1"
REGISTERED = """
SELECT count(*) FROM jobqueue_worker
WHERE stopped_at IS NULL AND heartbeat_at > statement_timestamp() - interval '10 seconds'
"""


@dataclass(frozen=True)
class Workload:
    """Jobs to drain: how many in a slice, in which queue, over how many keys, and by how many processes."""

    name: str
    queue: str
    handler: str
    jobs: int
    processes: int  # of the worker; without any, jobs are sent one by one instead
    keys: int = 0


WORKLOADS = [
    Workload("W3", "plain", "bench", 10_000, 1),
    Workload("W5", "ordered", "bench_ordered", 10_000, 2, keys=1_000),
    Workload("atomic", "plain", "bench_effect", 1_000, 2),
    Workload("send", "plain", "bench", 2_000, 0),
]


@dataclass(frozen=True)
class Usage:
    """Microseconds of processor time per job, and jobs per second."""

    server: float
    python: float
    rate: float

    def __getitem__(self, part: str) -> float:
        return {"server": self.server, "python": self.python, "total": self.server + self.python, "rate": self.rate}[
            part
        ]


Pair = list[tuple[Usage, Usage]]  # before and after, slice by slice
PARTS = ("server", "python", "total", "rate")


@dataclass(frozen=True)
class Ratio:
    """After beside before: the median over pairs, and where it lies with a confidence of 95 %."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """By bootstrap: the medians of many samples of the same size, drawn from these with replacement."""
        draw = random.Random(1)  # the same figures for the same measurements
        medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
        low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
        return cls(statistics.median(ratios), low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f}  [{self.low:.3f}, {self.high:.3f}]"


def main(arguments: Sequence[str]) -> int:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--before", default="HEAD", help="a commit or a folder (HEAD)")
    parser.add_argument("--after", default=str(ROOT), help="a commit or a folder (this tree)")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"how often both start anew ({PAIRS})")
    parser.add_argument("--bar", type=float, default=BAR, help=f"how much more the total may cost ({BAR})")
    parser.add_argument("--slices", type=int, default=SLICES, help=f"how often each drains in a pair ({SLICES})")
    parser.add_argument("--workload", nargs="+", choices=names, default=names, help="all by default")
    parser.add_argument("--json", type=Path, default=Path("bench-cost.json"))
    options = parser.parse_args(arguments)
    chosen = [workload for workload in WORKLOADS if workload.name in options.workload]
    measured: dict[str, list[Pair]] = {workload.name: [] for workload in chosen}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobqueue-bench-")))
        trees = {side: stack.enter_context(source(getattr(options, side))) for side in ("before", "after")}
        # Autovacuum would add its work to runs at random.
        server = stack.enter_context(throwaway(fsync=True, settings={**SETTINGS, "autovacuum": "off"}))
        sides = [stack.enter_context(SourceTree(side, tree, server, folder)) for side, tree in trees.items()]
        for workload in chosen:
            note(f"cost: {workload.name}, µs per job")
            for number in range(options.pairs):
                measured[workload.name].append(_pair(workload, server, sides, number, options.slices))
                note(f"  pair {number + 1} of {options.pairs}: {_said(measured[workload.name][-1])}")
    _report(measured, options.bar)
    _write(measured, options.json)
    return 0


def _pair(workload: Workload, server: Server, trees: Sequence[SourceTree], seed: int, slices: int) -> Pair:
    """A worker of each tree, started anew, and slices by turns. The first slice warms up and is not counted."""
    started: Callable[..., AbstractContextManager[_Side | _Sender]] = _at_work if workload.processes else _sending
    with ExitStack() as stack:
        sides = [stack.enter_context(started(workload, server, tree, seed, slices + 1)) for tree in trees]
        found = []
        for number in range(slices + 1):
            for side in sides:
                side.fill(number)
            turn = 1 if (number + seed) % 2 else -1
            before, after = [side.drain(number) for side in sides[::turn]][::turn]
            if number:
                found.append((before, after))
        return found


@contextmanager
def _sending(workload: Workload, server: Server, tree: SourceTree, seed: int, slices: int) -> Iterator[_Sender]:
    with psycopg.connect(tree.dsn, autocommit=True) as connection:
        yield _Sender(workload, tree, _Clocks(server, connection, [tree.filler]))


@dataclass
class _Sender:
    """One of the two trees, whose filling process sends jobs one by one."""

    workload: Workload
    tree: SourceTree
    clocks: _Clocks

    def fill(self, number: int) -> None:
        self.tree.tell("fill", self.workload.queue, self.workload.handler, 0, 0, 0)

    def drain(self, number: int) -> Usage:
        began, jobs = time.monotonic(), self.workload.jobs
        before = self.clocks.read()
        self.tree.tell("send_each", self.workload.queue, self.workload.handler, jobs)
        server, python = (after - sofar for sofar, after in zip(before, self.clocks.read(), strict=True))
        return Usage(server / jobs * 1e6, python / jobs * 1e6, jobs / (time.monotonic() - began))


@contextmanager
def _at_work(workload: Workload, server: Server, tree: SourceTree, seed: int, slices: int) -> Iterator[_Side]:
    tree.tell("fill", workload.queue, workload.handler, 0, 0, 0)
    command = tree.runjobs(f"--queue={workload.queue}", f"--processes={workload.processes}")
    with (
        psycopg.connect(tree.dsn, autocommit=True) as connection,
        working([command], tree.seeded(seed), workload.jobs * slices) as workers,
    ):
        side = _Side(workload, tree, workers, connection, _Clocks(server, connection, workers.pids))
        side.wait_until_idle()
        yield side


@dataclass
class _Side:
    """One of the two trees, with its worker at work."""

    workload: Workload
    tree: SourceTree
    workers: Workers
    connection: psycopg.Connection[tuple[int]]
    clocks: _Clocks

    def fill(self, number: int) -> None:
        load = self.workload
        self.tree.tell("fill", load.queue, load.handler, number * load.jobs, (number + 1) * load.jobs, load.keys)

    def drain(self, number: int) -> Usage:
        jobs = self.workload.jobs
        began = self.clocks.read()
        self.tree.tell("resume", self.workload.queue)
        self.workers.wait_for_first((number + 1) * jobs)
        end = self.workers.wait_until_finished(self.connection, UNFINISHED)
        server, python = (after - before for before, after in zip(began, self.clocks.read(), strict=True))
        ran = [self.workers.marks.ran(n) for n in range(number * jobs, (number + 1) * jobs)]
        self._check(ran)
        return Usage(server / jobs * 1e6, python / jobs * 1e6, jobs / (end - min(ran)) * 1e9)

    def _check(self, ran: Sequence[int]) -> None:
        done = self.connection.execute("SELECT count(*) FROM jobqueue_job WHERE state = 'completed'").fetchone()
        if done != (len(ran),):
            raise AssertionError(f"{done} of {len(ran)} jobs were completed")
        keys = self.workload.keys
        if keys and any(first >= second for first, second in zip(ran[:-keys], ran[keys:], strict=True)):
            raise AssertionError("two jobs of one key ran in the wrong order")

    def wait_until_idle(self) -> None:
        """Until all children are registered and the worker has nothing left to do but to wait."""
        deadline = time.monotonic() + 60
        used, before = 1.0, 0.0
        while used > IDLE * 0.2 or self._registered() < self.workload.processes:
            if time.monotonic() > deadline:
                raise WorkerFailed(f"it did not become idle within a minute, on a paused queue.{self.workers.tail()}")
            time.sleep(0.2)
            now = sum(self.clocks.read())
            used, before = now - before, now

    def _registered(self) -> int:
        return self.connection.execute(REGISTERED).fetchone()[0]  # type: ignore[index]  # a count


class _Clocks:
    """The processor time of a server's backends, and of processes with their descendants."""

    def __init__(self, server: Server, connection: psycopg.Connection[tuple[int]], pids: Sequence[int]) -> None:
        self._postmaster = int((server.data / "postmaster.pid").read_text().splitlines()[0])
        self._connection, self._pids = connection, pids

    def read(self) -> tuple[float, float]:
        """Seconds so far: of the server, of Python."""
        python = sum(processor_time.of_tree(pid) for pid in self._pids)
        return processor_time.of_backends(self._connection, self._postmaster), python


def _said(pair: Pair) -> str:
    parts = (f"{part} {_median(pair, part, 0):.1f} → {_median(pair, part, 1):.1f}" for part in ("server", "python"))
    return f"{', '.join(parts)}, total ratio {_ratio(pair, 'total'):.3f}"


def _report(measured: dict[str, list[Pair]], bar: float) -> None:
    print(f"\n{'':16} {'before':>9} {'after':>9}   ratio  95 %")
    for name, pairs in measured.items():
        slices = [one for pair in pairs for one in pair]
        for part in PARTS:
            ratio = Ratio.of([_ratio(pair, part) for pair in pairs])
            verdict = f"  ≤ {bar:g}: {'met' if ratio.median <= bar else 'MISSED'}" if part == "total" else ""
            before, after = _median(slices, part, 0), _median(slices, part, 1)
            unit = "jobs/s" if part == "rate" else "µs per job"
            print(f"{name:8} {part:7} {before:9,.5g} {after:9,.5g}   {ratio}  {unit}{verdict}")


def _ratio(pair: Pair, part: str) -> float:
    """The median over the slices of a pair."""
    return statistics.median(after[part] / before[part] for before, after in pair)


def _median(pair: Pair, part: str, side: int) -> float:
    return statistics.median(usage[side][part] for usage in pair)


def _write(measured: dict[str, list[Pair]], path: Path) -> None:
    found = {
        name: {
            "ratios": {part: asdict(Ratio.of([_ratio(pair, part) for pair in pairs])) for part in PARTS},
            "pairs": [[{"before": asdict(before), "after": asdict(after)} for before, after in pair] for pair in pairs],
        }
        for name, pairs in measured.items()
    }
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(f"\nwritten to {path}")
