"""Claims: the right to finish one attempt of one job.

The attempt alone cannot say who holds a job. When the commit of a claim is lost, because a standby that lacked it was
promoted or a backup was restored, the next claim gets the same attempt. So each claim carries a random number, drawn by
the claimer, stored with the job, and compared by every statement that finishes, renews or returns a fetched job.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from uuid import UUID

from .exceptions import InvalidOption

_TEXT = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/(\d{1,10})/([0-9a-f]{1,16})")


def draw_number() -> int:
    """A number that no other claim has; one for all jobs of a fetch or of a hand-over is enough."""
    return secrets.randbits(63) or 1


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt of one job, held by the process that drew its number.

    ``str(claim)`` and ``Claim.parse()`` carry it to another process, which can finish the job with it. A job that was
    only read, not fetched, has no number: it is fenced by its attempt alone.
    """

    job_id: UUID
    attempt: int
    number: int | None

    def __str__(self) -> str:
        return f"{self.job_id}/{self.attempt}/{self.number or 0:x}"

    @classmethod
    def parse(cls, text: object) -> Claim:
        """The claim that ``str(claim)`` made; ``InvalidOption`` for any other text."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            problem = f"expected the text of a claim, got {text!r:.60}"
            raise InvalidOption("claim", problem, hint="str(job.claim) makes one.")
        id, attempt, number = found.groups()
        return cls(UUID(id), int(attempt), int(number, 16) or None)

    def fits(self, attempt: int, number: int | None) -> bool:
        """Whether a row with this attempt and number is still held by this claim."""
        return self.attempt == attempt and self.number in (None, number)

    @staticmethod
    def is_text(value: object) -> bool:
        """Whether this is a text that :meth:`parse` takes."""
        return isinstance(value, str) and _TEXT.fullmatch(value) is not None
