from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.benchmarks import admin, cost, flat, groups, locked, memory, snapshot, speed, streams, workers
from tests.benchmarks.lab import Row, report
from tests.benchmarks.peers import suite as peers

SUITES = {
    "speed": speed.measure,
    "flat": flat.measure,
    "snapshot": snapshot.measure,
    "groups": groups.measure,
    "streams": streams.measure,
    "workers": workers.measure,
    "admin": admin.measure,
    "peers": peers.measure,
}
COMPARISONS = {
    "cost": cost.main,
    "locked": locked.main,
    "memory": memory.main,
}  # with options of their own, and not among those that run by default
RUNS = 5


def main() -> int:
    if sys.argv[1:] and sys.argv[1] in COMPARISONS:
        return COMPARISONS[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="all by default")
    parser.add_argument("--runs", type=int, help=f"interleaved runs, of which the median counts ({RUNS}; 1 if quick)")
    parser.add_argument("--scale", type=float, help="a part of the rows: 0.5 for half of them")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows: to see that it works")
    parser.add_argument("--json", type=Path, default=Path("bench.json"))
    options = parser.parse_args()
    runs = options.runs or (1 if options.quick else RUNS)
    scale = options.scale or (0.1 if options.quick else 1.0)
    rows: list[Row] = []
    for name in options.suites or SUITES:
        rows += SUITES[name](runs, scale)
    return 0 if report(rows, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
