"""How much memory a process uses."""

from __future__ import annotations

import os
import resource
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE")


def megabytes_of(pid: int | str) -> int | None:
    """The memory that a process uses now; ``None`` where the system does not say it."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE // (1024 * 1024)
    except OSError:
        return None


def resident_megabytes() -> int:
    """The memory that this process uses now; where the system does not say it, the most that it ever used."""
    now = megabytes_of("self")
    if now is not None:
        return now
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (1024 * 1024) if sys.platform == "darwin" else most // 1024
