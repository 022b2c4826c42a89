"""A process that sends jobs of one peer, as it is told on its standard input, one line of JSON each.

``python -m tests.benchmarks.peers.serving tests.benchmarks.peers.pgqueuer``
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from tests.benchmarks.marks import Marks

PATIENCE = 60.0  # seconds for a job to be run by an idle worker
GAP = (0.005, 0.025)  # between two jobs, so that no peer's polling keeps step with these sends


class Library(Protocol):
    """What the module of every peer has."""

    def install(self) -> None: ...
    def empty(self) -> None: ...
    def send_each(self, numbers: range) -> None: ...
    def send_bulk(self, numbers: range) -> None: ...


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    library = cast(Library, import_module(sys.argv[1]))
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            answer: Any = {"answer": _serve(library, verb, arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")


def _serve(library: Library, verb: str, arguments: list[Any]) -> Any:
    if verb == "latencies":
        return _latencies(library, *arguments)
    work = getattr(library, verb)
    start = time.perf_counter()
    if arguments:
        work(range(*arguments))
    else:
        work()
    return time.perf_counter() - start


def _latencies(library: Library, first: int, stop: int, path: str) -> list[float]:
    """Send one job after another to an idle worker: milliseconds from the return of the send to each handler."""
    marks = Marks(Path(path))
    found = []
    for n in range(first, stop):
        library.send_each(range(n, n + 1))
        sent = time.time_ns()
        found.append(max(0, _ran(marks, n) - sent) / 1e6)  # a handler may begin before the send returns
        time.sleep(random.uniform(*GAP))
    return found


def _ran(marks: Marks, n: int) -> int:
    deadline = time.monotonic() + PATIENCE
    while not (at := marks.ran(n)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {n} was not run within {PATIENCE:.0f} seconds")
        time.sleep(0.001)
    return at


if __name__ == "__main__":
    main()
