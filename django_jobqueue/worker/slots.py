"""Shared memory in which a child writes which jobs run; its supervisor reads it even if the child hangs or has died."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
import time
from typing import NamedTuple, Self
from uuid import UUID

from ..engine import workers
from .tally import Tally

_SLOT = struct.Struct("=16sqd")
_HEAD = struct.Struct("=dQQQdQ5QQ")
_TALLY = struct.Struct("=5Q")
_TIME = struct.Struct("=d")
_RENEWED, _DONE, _TURNED, _LEFT, _ENDED, _TOTAL = 0, 8, 32, 40, 48, 88
_EMPTY = bytes(_SLOT.size)


class RunningSlot(NamedTuple):
    """An attempt inside a handler, and its deadline by the monotonic clock, which all processes of a machine share."""

    attempt: workers.Running
    deadline: float


class Slots:
    """One slot for each handler that can run at once, and a few numbers. Written by the child, read by its supervisor.

    Writes take no lock: each slot has a single writer, and a reader compares two reads before it acts.
    """

    def __init__(self, count: int, file: int = -1) -> None:
        self.count, self.file = count, file
        self._memory = mmap.mmap(file, _HEAD.size + count * _SLOT.size)

    @classmethod
    def in_file(cls, count: int) -> Self:
        """In a file without a name, because an ``exec`` keeps files, but no memory."""
        file = open_unnamed_file()
        os.ftruncate(file, _HEAD.size + count * _SLOT.size)
        return cls(count, file)

    def __reduce__(self) -> tuple[type[Slots], tuple[int, int]]:
        """For a process that has inherited the file."""
        return Slots, (self.count, self.file)

    def reset(self) -> None:
        """Clear the memory for the next child."""
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

    # When the housekeeping process last sent the heartbeat of this child; 0 before its row exists.

    @property
    def renewed_at(self) -> float:
        return float(_TIME.unpack_from(self._memory, _RENEWED)[0])

    @renewed_at.setter
    def renewed_at(self, moment: float) -> None:
        _TIME.pack_into(self._memory, _RENEWED, moment)

    def seconds_since_renewal(self) -> float:
        """How long ago the housekeeping process sent the heartbeat of this child."""
        return time.monotonic() - self.renewed_at

    # When the loop of the process last began an iteration. A process that waits for ever for an answer shows only here.

    @property
    def turned_at(self) -> float:
        return float(_TIME.unpack_from(self._memory, _TURNED)[0])

    @turned_at.setter
    def turned_at(self, moment: float) -> None:
        _TIME.pack_into(self._memory, _TURNED, moment)

    # The exit code that the child chose. A handler may end the process with the same code, but does not write it here.

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

    # How the attempts of this child ended.

    @property
    def tally(self) -> Tally:
        return Tally(*_TALLY.unpack_from(self._memory, _ENDED))

    @tally.setter
    def tally(self, tally: Tally) -> None:
        _TALLY.pack_into(
            self._memory, _ENDED, tally.completed, tally.stopped, tally.failed, tally.retried, tally.snoozed
        )

    # How many jobs waited that this worker can take, when it began to drain them; written by the housekeeping process.

    @property
    def total(self) -> int:
        return int(struct.unpack_from("=Q", self._memory, _TOTAL)[0])

    @total.setter
    def total(self, number: int) -> None:
        struct.pack_into("=Q", self._memory, _TOTAL, number)

    def close(self) -> None:
        self._memory.close()


def open_unnamed_file() -> int:
    """A file that vanishes with the last process that has opened it; on Linux it is only in memory."""
    if sys.platform == "linux":
        return os.memfd_create("jobqueue")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
