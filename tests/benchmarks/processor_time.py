"""How much processor time processes have used: of a tree of processes, and of a database's client backends.

Live processes are read from their processor clocks, in nanoseconds. Those that have exited are in the times that
their parent has waited for, which the kernel keeps in hundredths of a second. The sum of both never loses a process:
when one exits, its time moves from the first to the second. Linux only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
_WHOLE_PROCESS = 2  # CPUCLOCK_SCHED: all threads, also those that ended

BACKENDS = """
SELECT pid FROM pg_stat_activity
WHERE backend_type IN ('client backend', 'parallel worker') AND datname = current_database() AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True)
class _Stat:
    """What is needed of ``/proc/<pid>/stat``."""

    pid: int
    parent: int
    waited_for: float  # seconds of children that have exited


def of_tree(root: int) -> float:
    """Seconds used so far by a process, its descendants and those of them that have exited."""
    stats = {stat.pid: stat for stat in _all_stats()}
    members, found = {root}, 0
    while found != len(members):
        found = len(members)
        members |= {stat.pid for stat in stats.values() if stat.parent in members}
    return _of_live(members) + sum(stats[pid].waited_for for pid in members if pid in stats)


def of_backends(connection: psycopg.Connection[tuple[int]], postmaster: int) -> float:
    """Seconds used so far by the client backends of this database, without this connection's.

    Backends of the whole server that have exited are included, so that those of other databases must stay. Autovacuum
    must be off, because the postmaster waits for its workers too.
    """
    live = _of_live(pid for (pid,) in connection.execute(BACKENDS))
    stat = _stat(postmaster)
    return live + (stat.waited_for if stat else 0.0)


def _of_live(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        with suppress(OSError):  # it has exited meanwhile
            total += time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)
    return total


def _all_stats() -> list[_Stat]:
    stats = (_stat(int(folder.name)) for folder in PROC.iterdir() if folder.name.isdecimal())
    return [stat for stat in stats if stat is not None]


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return _Stat(pid, int(fields[1]), (int(fields[13]) + int(fields[14])) / TICKS)
