"""How much memory the processes of an idle worker take: ``make bench ARGS="memory --processes 2"``.

PSS divides a page that several processes share among them, so the sum is what the worker takes. RSS counts it in each.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from tests.benchmarks.lab import laboratory
from tests.benchmarks.peers.peer import OURS
from tests.benchmarks.peers.stand import environment

METHODS = ("fork", "exec", "thread")
BASE = "memory"
MEGABYTE = 1024
PATIENCE = 120.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks memory", description=__doc__)
    parser.add_argument("--processes", type=int, default=1, help="child processes (1)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds from the start to the measurement (10)")
    parser.add_argument("--method", nargs="*", choices=METHODS, default=METHODS, help="how processes start (all)")
    options = parser.parse_args(arguments)
    print(f"{'':8} {'process':14} {'PSS MB':>8} {'RSS MB':>8}")
    with laboratory([BASE]) as server:
        for method in options.method:
            settings = json.dumps({"START_METHOD": method})
            command = [sys.executable, "-m", "django", "runjobs", "--name=bench", f"--processes={options.processes}"]
            worker = subprocess.Popen(command, env=environment(server, BASE, **OURS.env, BENCH_JOBQUEUE=settings))
            try:
                workers = 1 if method == "thread" else options.processes
                _wait_until_registered(psycopg.conninfo.make_conninfo(server.dsn, dbname=BASE), workers)
                time.sleep(options.idle)
                _report(method, family(worker.pid))
            finally:
                worker.terminate()
                worker.wait()
    return 0


def _wait_until_registered(dsn: str, processes: int) -> None:
    query = "SELECT count(*) FROM jobqueue_worker WHERE stopped_at IS NULL"
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(dsn, autocommit=True) as connection:
        while connection.execute(query).fetchone() != (processes,):
            if time.monotonic() > deadline:
                raise TimeoutError("the worker did not start")
            time.sleep(0.1)


def family(pid: int) -> list[int]:
    """The process and its children, in the order in which they were started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def megabytes(pid: int) -> dict[str, float]:
    """What ``smaps_rollup`` says: ``Pss``, ``Rss`` and others."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(size) / MEGABYTE for name, size in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}


def _report(method: str, pids: list[int]) -> None:
    names = ["supervisor", "housekeeping", *(f"child {number + 1}" for number in range(len(pids)))]
    if len(pids) == 1:
        names = ["all in one"]
    found = [megabytes(pid) for pid in pids]
    total = {size: sum(each[size] for each in found) for size in ("Pss", "Rss")}
    for name, each in zip([*names[: len(pids)], "total"], [*found, total], strict=True):
        print(f"{method:8} {name:14} {each['Pss']:8.1f} {each['Rss']:8.1f}", flush=True)
