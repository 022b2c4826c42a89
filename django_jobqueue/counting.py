"""How many there are, as far as is counted."""

from __future__ import annotations

from dataclasses import dataclass

MANY = 10_000  # as far as is counted


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are: exactly, or at least ``MANY``, or among the newest numbers only."""

    number: int
    among: int | None = None

    @property
    def is_capped(self) -> bool:
        return self.number > MANY

    @property
    def is_exact(self) -> bool:
        return not self.is_capped and self.among is None
