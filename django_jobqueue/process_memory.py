"""What a process remembers from one call to the next.

Each such memory is one object at the top of its module, of a class that says for how long it remembers. All of them are
shortcuts: a process that has forgotten asks again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class ProcessMemory(ABC):
    """State that lives as long as the process, unless it is told to forget."""

    _all: ClassVar[list[ProcessMemory]] = []

    def __init__(self) -> None:
        self._all.append(self)

    @abstractmethod
    def forget(self) -> None:
        """Be as in a new process."""

    @classmethod
    def forget_all(cls) -> None:
        """For tests, each of which begins as in a new process."""
        for memory in cls._all:
            memory.forget()
