"""Signals to processes and process groups."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1

# Windows has no SIGHUP.
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]


def send_signal(pid: int, number: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_group(pid: int) -> None:
    """Kill the processes that the handlers of a child started in its process group, not those in sessions of their own.

    In a terminal children lead no process groups, and nothing is killed.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def die_with_parent(parent: int, exit_code: int) -> None:
    """On Linux: let this process be killed when its parent dies, even while a handler hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(exit_code)
