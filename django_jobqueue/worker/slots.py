"""What the handlers of a child work on, in memory that its supervisor sees, even when the child hangs or is dead."""

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


class Running(NamedTuple):
    """An attempt inside a handler, and when its time is used up, by the clock all processes of a machine share."""

    attempt: workers.Running
    deadline: float


class Slots:
    """One slot per handler that can run at once, and a few numbers. Written by the child, read by its supervisor.

    Writes take no lock: a slot has one writer, and whoever decides by it looks twice.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, _HEAD.size + count * _SLOT.size)

    def reset(self) -> None:
        """Nothing of the child before is left."""
        self._memory[:] = bytes(len(self._memory))

    def enter(self, slot: int, id: bytes, number: int, deadline: float) -> None:
        _SLOT.pack_into(self._memory, _HEAD.size + slot * _SLOT.size, id, number, deadline)

    def leave(self, slot: int) -> None:
        start = _HEAD.size + slot * _SLOT.size
        self._memory[start : start + _SLOT.size] = _EMPTY

    def running(self) -> list[Running]:
        found = []
        for slot in range(self.count):
            id, number, deadline = _SLOT.unpack_from(self._memory, _HEAD.size + slot * _SLOT.size)
            if deadline:
                found.append(Running(workers.Running(UUID(bytes=id), number), deadline))
        return found

    # When the keeper last told the database that this child is alive; 0 before its row exists.

    @property
    def renewed(self) -> float:
        return float(_TIME.unpack_from(self._memory, _RENEWED)[0])

    @renewed.setter
    def renewed(self, moment: float) -> None:
        _TIME.pack_into(self._memory, _RENEWED, moment)

    def silence(self) -> float:
        """For how many seconds the database has not heard of this child."""
        return time.monotonic() - self.renewed

    # When its loop last came round: a process that waits for an answer that never comes looks well otherwise.

    @property
    def turned(self) -> float:
        return float(_TIME.unpack_from(self._memory, _TURNED)[0])

    @turned.setter
    def turned(self, moment: float) -> None:
        _TIME.pack_into(self._memory, _TURNED, moment)

    # The exit code with which it leaves by itself: a handler may leave with any.

    @property
    def left(self) -> int:
        return int(struct.unpack_from("=Q", self._memory, _LEFT)[0])

    @left.setter
    def left(self, code: int) -> None:
        struct.pack_into("=Q", self._memory, _LEFT, code)

    def count_jobs(self, done: int, failed: int, held: int) -> None:
        struct.pack_into("=QQQ", self._memory, _DONE, done, failed, held)

    @property
    def jobs(self) -> tuple[int, int, int]:
        """How many jobs it has completed and failed, and how many it holds."""
        return struct.unpack_from("=QQQ", self._memory, _DONE)

    def close(self) -> None:
        self._memory.close()
