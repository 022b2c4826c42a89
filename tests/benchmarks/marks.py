"""When each job's handler ran and in which process, written by the handlers themselves into a file that all map.

A mark costs a fraction of a microsecond and no lock, and says the same of every library, so all are measured alike.
Only the standard library is used here, because the peers import this in environments of their own.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from time import time_ns

VARIABLE = "BENCH_MARKS"  # names the file to the processes that run handlers

_times: memoryview | None = None
_processes: memoryview | None = None


def mark(n: int) -> None:
    """The whole work of a handler: job ``n`` ran now, here."""
    if _times is None:
        _open()
    _times[n] = time_ns()  # type: ignore[index]  # opened above
    _processes[n] = os.getpid()  # type: ignore[index]


def _open() -> None:
    global _times, _processes
    _processes, _times = _columns(Path(os.environ[VARIABLE]))


def create(path: Path, jobs: int) -> Marks:
    """A new file with room for so many jobs, none of which has run."""
    path.write_bytes(bytes(jobs * 16))
    return Marks(path)


def _columns(path: Path) -> tuple[memoryview, memoryview]:
    with path.open("r+b") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    middle = len(whole) // 2
    return whole[:middle], whole[middle:]


@dataclass(frozen=True)
class Span:
    """From when every process was at work until all was done."""

    jobs: int
    seconds: float
    processes: int

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


class Marks:
    """What the handlers wrote, read by the process that measures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._processes, self._times = _columns(path)
        self._done = 0  # all before this have run; jobs run roughly in order, so looking again is cheap

    def __len__(self) -> int:
        return len(self._times)

    def ran(self, n: int) -> int:
        """When job ``n`` ran, in nanoseconds; 0 if it did not."""
        return self._times[n]

    def count(self) -> int:
        return len(self._times) - self._times.tolist().count(0)

    def first_missing(self) -> int | None:
        """A job that has not run, if any."""
        while self._done < len(self._times) and self._times[self._done]:
            self._done += 1
        return self._done if self._done < len(self._times) else None

    def times(self) -> list[int]:
        """When jobs ran, in the order they did."""
        return sorted(filter(None, self._times))

    def span(self, processes: int, end: int) -> Span:
        """The time in which all processes worked, until ``end``: it begins when the last of them began its first job.

        If one of them got nothing to do before all was done, it begins with the first job.
        """
        firsts: dict[int, int] = {}
        for at, process in zip(self._times, self._processes, strict=True):
            if at and at < firsts.get(process, at + 1):
                firsts[process] = at
        times = self.times()
        begin = max(firsts.values()) if len(firsts) >= processes else times[0]
        jobs = sum(1 for at in times if at > begin)
        if jobs < len(times) // 4:
            begin, jobs = times[0], len(times) - 1
        return Span(jobs, (end - begin) / 1e9, len(firsts))
