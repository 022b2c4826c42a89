"""The result of a count that may be limited."""

from __future__ import annotations

from dataclasses import dataclass

MANY = 10_000  # counting stops here


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows: exact, or at least ``MANY``, or counted only ``among`` the newest rows."""

    number: int
    among: int | None = None

    @property
    def is_capped(self) -> bool:
        return self.number > MANY

    @property
    def is_exact(self) -> bool:
        return not self.is_capped and self.among is None
