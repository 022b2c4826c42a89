"""What the handlers of a child run, in memory that its supervisor reads even when the child hangs or is dead."""

from __future__ import annotations

import mmap
import struct
import time
from typing import NamedTuple
from uuid import UUID

from ..engine import workers

_SLOT = struct.Struct("=16sqd")
_HEAD = struct.Struct("=dQQQdQ")
_TIME = struct.Struct("=d")
_RENEWED, _DONE, _TURNED, _LEFT = 0, 8, 32, 40
_EMPTY = bytes(_SLOT.size)


class RunningSlot(NamedTuple):
    """An attempt inside a handler, and its deadline by the clock that all processes of a machine share."""

    attempt: workers.Running
    deadline: float


class Slots:
    """One slot per handler that can run at once, and a few numbers. Written by the child, read by its supervisor.

    Writes take no lock: a slot has one writer, and a reader that acts on it reads twice.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, _HEAD.size + count * _SLOT.size)

    def reset(self) -> None:
        """Clear what the child before has written."""
        self._memory[:] = bytes(len(self._memory))

    def enter(self, slot: int, id: bytes, number: int, deadline: float) -> None:
        _SLOT.pack_into(self._memory, _HEAD.size + slot * _SLOT.size, id, number, deadline)

    def leave(self, slot: int) -> None:
        start = _HEAD.size + slot * _SLOT.size
        self._memory[start : start + _SLOT.size] = _EMPTY

    def running(self) -> list[RunningSlot]:
        running = []
        for slot in range(self.count):
            id, number, deadline = _SLOT.unpack_from(self._memory, _HEAD.size + slot * _SLOT.size)
            if deadline:
                running.append(RunningSlot(workers.Running(UUID(bytes=id), number), deadline))
        return running

    # When the housekeeper last renewed the row of this child; 0 before its row exists.

    @property
    def renewed_at(self) -> float:
        return float(_TIME.unpack_from(self._memory, _RENEWED)[0])

    @renewed_at.setter
    def renewed_at(self, moment: float) -> None:
        _TIME.pack_into(self._memory, _RENEWED, moment)

    def seconds_since_renewal(self) -> float:
        """How long ago the housekeeper renewed the row of this child."""
        return time.monotonic() - self.renewed_at

    # When its loop last came round: nothing else shows that a process waits for an answer that never comes.

    @property
    def turned_at(self) -> float:
        return float(_TIME.unpack_from(self._memory, _TURNED)[0])

    @turned_at.setter
    def turned_at(self, moment: float) -> None:
        _TIME.pack_into(self._memory, _TURNED, moment)

    # The exit code with which it leaves by itself: a handler may leave with any.

    @property
    def exit_code(self) -> int:
        return int(struct.unpack_from("=Q", self._memory, _LEFT)[0])

    @exit_code.setter
    def exit_code(self, code: int) -> None:
        struct.pack_into("=Q", self._memory, _LEFT, code)

    def count_jobs(self, done: int, failed: int, held: int) -> None:
        struct.pack_into("=QQQ", self._memory, _DONE, done, failed, held)

    @property
    def jobs(self) -> tuple[int, int, int]:
        """How many jobs it has completed and failed, and how many it holds."""
        return struct.unpack_from("=QQQ", self._memory, _DONE)

    def close(self) -> None:
        self._memory.close()
