"""How large a process is."""

from __future__ import annotations

import os
import resource
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE")


def megabytes_of(pid: int | str) -> int | None:
    """What a process occupies now, where the system says so."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE // (1024 * 1024)
    except OSError:
        return None


def resident_megabytes() -> int:
    """What this one occupies now; where the system does not say, the most it ever did."""
    now = megabytes_of("self")
    if now is not None:
        return now
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (1024 * 1024) if sys.platform == "darwin" else most // 1024
