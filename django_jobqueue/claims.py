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

from .exceptions import ClaimLost, InvalidOption

_TEXT = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/(\d{1,10})/([0-9a-f]{1,16})")


def draw_number() -> int:
    """Draw a random number that no other claim has; all jobs of a fetch or of a hand-over share one."""
    return secrets.randbits(63) or 1


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt of one job, held by the process that drew its number.

    With ``str(claim)`` and ``Claim.parse()`` it can be passed to another process, which can finish the job with it. The
    claim of a job that was only read, not fetched, has no number: then only the attempt is checked.
    """

    job_id: UUID
    attempt: int
    number: int | None

    def __str__(self) -> str:
        return f"{self.job_id}/{self.attempt}/{self.number or 0:x}"

    @classmethod
    def parse(cls, text: object) -> Claim:
        """Return the claim of a text made by ``str(claim)``. Raises ``InvalidOption`` for any other text."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            problem = f"expected the text of a claim, got {text!r:.60}"
            raise InvalidOption("claim", problem, hint="str(job.claim) makes one.")
        id, attempt, number = found.groups()
        return cls(UUID(id), int(attempt), int(number, 16) or None)

    def fits(self, attempt: int, number: int | None) -> bool:
        """Whether this claim is still valid for a row with this attempt and number."""
        return self.attempt == attempt and self.number in (None, number)

    def check(self, attempt: int, number: int | None) -> None:
        """Raise ``ClaimLost`` if it is no longer valid for a row with this attempt and number."""
        if not self.fits(attempt, number):
            raise ClaimLost(job_id=self.job_id, attempt=self.attempt, now=attempt)

    @staticmethod
    def is_text(value: object) -> bool:
        """Whether this is a text that :meth:`parse` accepts."""
        return isinstance(value, str) and _TEXT.fullmatch(value) is not None
