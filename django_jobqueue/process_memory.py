"""State that a process keeps between calls.

Each kind of state is an object at the top of its module; its class says how long it is kept. All of it is only a cache:
a process that has forgotten it reads it again.
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
        """Forget all, as in a new process."""

    @classmethod
    def forget_all(cls) -> None:
        """Forget the state of all modules: each test begins as in a new process."""
        for memory in cls._all:
            memory.forget()
