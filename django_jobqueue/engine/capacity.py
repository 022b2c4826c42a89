"""Who is to be told at once when a verb of this process ends a job; of other processes' verbs nobody is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

from .transactions import after_commit

Told = Callable[[], None]
_holders: dict[UUID, Told] = {}


def hold(ids: Iterable[UUID], told: Told) -> None:
    _holders.update(dict.fromkeys(ids, told))


def let_go(ids: Iterable[UUID], told: Told) -> None:
    for id in ids:
        if _holders.get(id) == told:  # a method is another object each time
            del _holders[id]


def ended(using: str, ids: Iterable[UUID]) -> None:
    """Attempts of these jobs have ended: tell whoever holds them, after the commit. Free of cost if nobody does."""
    if _holders and (holders := {told for id in ids if (told := _holders.get(id)) is not None}):
        after_commit(using, partial(_tell, holders))


def _tell(holders: set[Told]) -> None:
    for told in holders:
        told()
