"""Exactly the jobs that an operator saw: those whose last change was committed in a snapshot of the database.

A time would not be exact, because a failure has the time of its statement and may be committed much later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Case, F, Q, QuerySet, When
from django.db.models.functions import Coalesce

from ..exceptions import InvalidOption
from ..expressions import IsVisibleIn, RowXid
from ..models import Job
from ..states import JobState
from .databases import rows
from .sql.session import NEXT_XID

J = TypeVar("J", bound=Job)

CHANGED = "it changed after it was shown"  # why a job is refused
MOST_CHARS = 200_000  # the ids of about ten thousand concurrent transactions
_SNAPSHOT = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):((?:[0-9]{1,19}(?:,[0-9]{1,19})*)?)")

# The transaction that brought a job into the state that the verb takes. A job that was never moved is as it was sent.
# A cancel takes waiting and running jobs, so a job that was claimed meanwhile is still selected; a redrive takes those
# that wait or failed. A completion does not store its transaction, because that would cost time for every job; there
# the xmin of the row is used.
_MOVED = Coalesce(F("moved_xid"), F("sent_xid"))
_CHANGES: Mapping[str, Any] = MappingProxyType(
    {
        "retry": _MOVED,
        "skip": _MOVED,
        "cancel": F("sent_xid"),
        "redrive": F("sent_xid"),
        "delete": Case(When(state=JobState.COMPLETED, then=RowXid()), default=_MOVED),
    }
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The jobs that were shown to an operator before a verb was confirmed; without a snapshot all jobs."""

    verb: str
    snapshot: str

    def among(self, jobs: QuerySet[J]) -> QuerySet[J]:
        return jobs.filter(self._is_visible()) if self.snapshot else jobs

    def later(self, jobs: QuerySet[J]) -> QuerySet[J]:
        """The jobs that came into their state after the snapshot."""
        return jobs.filter(~self._is_visible()) if self.snapshot else jobs.none()

    def changed(self, ids: Collection[UUID], using: str) -> set[UUID]:
        """Those of these jobs that changed since. They must be locked, so that the answer stays true."""
        if not self.snapshot:
            return set()
        return set(self.later(Job.objects.using(using).filter(pk__in=ids)).values_list("pk", flat=True))

    def _is_visible(self) -> Q:
        return Q(IsVisibleIn(_CHANGES[self.verb], self.snapshot))


def check_snapshot(value: object, using: str) -> str:
    """Return the snapshot if it is a snapshot of this database. Raises ``InvalidOption`` otherwise."""
    match = _SNAPSHOT.fullmatch(value) if isinstance(value, str) and len(value) <= MOST_CHARS else None
    if match is None or not _is_ordered(match):
        raise InvalidOption("snapshot", f"expected one that current_snapshot() returned, got {str(value)[:40]!a}")
    if int(match[2]) > rows(using, NEXT_XID)[0][0]:
        raise InvalidOption(
            "snapshot",
            "it is newer than this database",
            hint="The database may have been restored since. Look at the jobs again.",
        )
    return match[0]


def _is_ordered(match: re.Match[str]) -> bool:
    """Whether PostgreSQL can read it: the running transactions lie between the two bounds, in order."""
    running = [int(xid) for xid in match[3].split(",") if xid]
    bounds = int(match[1]), int(match[2])
    inside = all(bounds[0] <= xid < bounds[1] for xid in running)
    return 0 < bounds[0] <= bounds[1] and inside and running == sorted(running)
