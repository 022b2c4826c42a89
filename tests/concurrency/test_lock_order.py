"""Locks that a statement waits for are taken in one order, so that two statements cannot wait for each other."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import rows
from django_jobqueue.engine.lanes import Lane, Locked
from django_jobqueue.policies import ORDERED

from .sessions import Session, scalar

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

NUMBER = 40  # in any other order, the lowest is hardly ever the first


def lock(hash: int) -> None:
    scalar("SELECT pg_advisory_xact_lock(%s)::text", hash)


def locks_of(session: Session) -> int:
    return int(
        scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = %s", session.pid)
    )


def waits_for_the_lowest(other: Session, third: Session, hashes: list[int], step: Any, *args: Any) -> None:
    """While the lowest is locked, the session under test has locked none of the others."""
    other.begin()
    other.run(lock, min(hashes))
    third.begin()
    waiting = third.start_blocked(step, *args)

    assert locks_of(third) == 0

    other.commit()
    waiting.result()
    assert locks_of(third) == NUMBER
    third.rollback()


def test_keys_are_locked_in_one_order(fifo_queue, other: Session, third: Session):
    keys = [f"key {number}" for number in range(NUMBER)]
    key_hash = sql.lanes.KEY_HASH.format(key="%s", queue="%s")
    hashes = [scalar(f"SELECT {key_hash}", key, fifo_queue.name) for key in keys]
    lanes = [Lane(fifo_queue.name, ORDERED, key) for key in keys]

    waits_for_the_lowest(other, third, hashes, Locked, "default", lanes)


def test_ids_are_locked_in_one_order(fifo_queue, other: Session, third: Session):
    ids: list[UUID] = [uuid4() for _ in range(NUMBER)]
    hashes = [scalar(f"SELECT {sql.send.ID_HASH.format(id='%s::uuid')}", id) for id in ids]

    waits_for_the_lowest(other, third, hashes, rows, "default", sql.send.LOCK_FREE_IDS, {"ids": ids})
