"""How much memory a process uses."""

from __future__ import annotations

import mmap
import sys


def megabytes_of(pid: int | str) -> int | None:
    """The memory that a process uses now; ``None`` where the system does not say it."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE // (1024 * 1024)
    except OSError:
        return None


def resident_megabytes() -> int:
    """The memory that this process uses now; elsewhere the most that it ever used, or 0 on Windows."""
    now = megabytes_of("self")
    if now is not None:
        return now
    if sys.platform == "win32":
        return 0  # not known
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (1024 * 1024) if sys.platform == "darwin" else most // 1024
