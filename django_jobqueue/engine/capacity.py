"""Who is to be told at once when a verb of this process ends a job; of other processes' verbs nobody is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

from .transactions import after_commit

Told = Callable[[], None]


class Holders:
    """The streams of this process by the jobs they hold; a job is in here from ``hold`` until ``let_go``."""

    def __init__(self) -> None:
        self._by_job: dict[UUID, Told] = {}

    def hold(self, ids: Iterable[UUID], told: Told) -> None:
        """From now on ``told`` is called when one of these jobs ends."""
        self._by_job.update(dict.fromkeys(ids, told))

    def let_go(self, ids: Iterable[UUID], told: Told) -> None:
        """End what ``hold`` began, unless another has taken the job over."""
        for id in ids:
            if self._by_job.get(id) == told:  # a method is another object each time
                del self._by_job[id]

    def ended(self, using: str, ids: Iterable[UUID]) -> None:
        """Attempts of these jobs have ended: tell their holders, after the commit. Free of cost if there are none."""
        if self._by_job and (holders := {told for id in ids if (told := self._by_job.get(id)) is not None}):
            after_commit(using, partial(_tell, holders))


def _tell(holders: set[Told]) -> None:
    for told in holders:
        told()


_holders = Holders()
hold, let_go, ended = _holders.hold, _holders.let_go, _holders.ended
