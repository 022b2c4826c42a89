"""Lanes: which of the jobs of one key is next. Only this module decides that.

Three rules prevent deadlocks and stranded jobs:

* Locks are taken in one order: first the keys (sorted), then rows (by id). A fetch may lock rows first, because it
  never waits for a lock. A batch may lock its rows in any order, because it gives up after a moment.
* A lane is judged by a statement that begins after its key was locked, so that it sees everything committed before.
* Code that takes a job out of a lane, or makes a job not due, calls :func:`release` in the same transaction. If that
  transaction cannot look again, changes too many keys, or would have to wait for a lock, :func:`release_later` stores
  the lane in the same transaction, and it is released after the commit.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ..models import Job, Queue
from ..partitions import leaf_of
from ..policies import LANED, ORDERED
from . import sql
from .announcements import after_commit, wake
from .databases import execute, rows
from .transactions import T, at, in_transaction, is_strict, rows_of, text_array

MOST_KEYS = 200  # per transaction: more from many workers would exhaust the server's table of locks
# How long a verb that finishes a job waits for the key of that job. A fetch locks keys for a millisecond or two. Other
# transactions may lock a key for minutes; then the lane is released later.
PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02)


class Lane(NamedTuple):
    queue: str
    policy: str
    key: str


def lanes_of(jobs: Iterable[Job]) -> set[Lane]:
    return {Lane(job.queue_id, job.policy, job.singleton_key) for job in jobs if job.policy in LANED}


class Locked:
    """The lanes whose keys this transaction has locked; those in ``refused`` are locked by other transactions."""

    def __init__(self, using: str, lanes: Collection[Lane], *, pauses: Collection[float] | None = None) -> None:
        """Lock the keys of these lanes. With ``pauses``, do not wait for locks: try, and try again after each pause."""
        self.using = using
        self.refused: set[Lane] = set()
        self.later = bool(lanes) and (len(lanes) > MOST_KEYS or is_strict(using))
        if not lanes or self.later:
            return
        if pauses is None:
            queues, _, keys = map(text_array, zip(*lanes, strict=True))
            rows_of(using, sql.lanes.WAIT_FOR_KEYS, {"queues": queues, "keys": keys})
            return
        self.refused = set(lanes)
        for pause in (None, *pauses):
            if pause is not None:
                time.sleep(pause)
            queues, _, keys = map(text_array, zip(*self.refused, strict=True))
            answers = rows_of(using, sql.lanes.TRY_LANES, {"queues": queues, "keys": keys}, by_name=True)
            ours = {(queue, key) for queue, key, is_ours in answers if is_ours}
            self.refused = {lane for lane in self.refused if (lane.queue, lane.key) not in ours}
            if not self.refused:
                break

    def release(self, lanes: Collection[Lane]) -> None:
        """Release the lanes whose keys are locked; the others are released later."""
        later = set(lanes) if self.later else self.refused & set(lanes)
        if later:
            release_later(self.using, later)
        if now := set(lanes) - later:
            release(self.using, now)


def release(using: str, lanes: Collection[Lane], *, leaves: Mapping[str, str] | None = None) -> None:
    """Make the next job of each lane fetchable, unless the lane is blocked; the keys must be locked already.

    Never waits: a lane whose next job is locked by another transaction is released later.
    """
    if locked := _release(using, lanes, leaves):
        release_later(using, locked)


def _release(using: str, lanes: Collection[Lane], leaves: Mapping[str, str] | None = None) -> set[Lane]:
    """Release these lanes; return those whose next job is locked."""
    grouped = _by_queue(lanes)
    if leaves is None:
        leaves = leaves_of(using, [queue for queue, _ in grouped])
    locked: set[Lane] = set()
    woken: set[str] = set()
    for (queue, policy), keys in grouped.items():
        statement = sql.lanes.RELEASE_LANES if policy == ORDERED else sql.lanes.RELEASE_RUNNING
        params = {"queue": queue, "policy": policy, "keys": text_array(sorted(keys))}
        waiting = rows_of(using, at(leaves[queue], statement), params, by_name=policy == ORDERED)
        left = {Lane(queue, policy, key) for key, is_locked in waiting if is_locked}
        locked |= left
        # In lanes that are not ordered this looks only for held jobs, not for fetchable ones. A lane that is still
        # locked wakes no worker, because a worker would only try to release it again.
        if len(left) < (len(waiting) if policy == ORDERED else len(keys)):
            woken.add(queue)
    wake(using, woken)
    return locked


def release_each(using: str, lanes: Collection[Lane]) -> None:
    """Release lanes, a bounded number of keys at a time, in their own transactions or in the caller's."""
    for some in chunks(sorted(lanes), MOST_KEYS):
        in_transaction(using, partial(_try_and_release, using, some))


def _try_and_release(using: str, lanes: Collection[Lane]) -> None:
    Locked(using, lanes, pauses=()).release(lanes)


# ------------------------------------------------------------------------------------------------- pending releases


def release_later(using: str, lanes: Collection[Lane]) -> None:
    """Release these lanes after this transaction: right after its commit, if nothing is locked then.

    They are stored in the transaction, so that a crash does not lose them, and so that a lane whose release is pending
    is not taken for a stranded one.
    """
    queues, policies, keys = map(text_array, zip(*sorted(lanes), strict=True))
    params = {"queues": queues, "policies": policies, "keys": keys}
    pending = [id for (id,) in rows(using, sql.lanes.REMEMBER_LANES, params)]
    after_commit(using, partial(_release_pending, using, pending))


def release_pending_of(queue: str | None, using: str) -> int:
    """Release the pending lanes of one queue, or of all; return their number. A fetch that finds no job calls this."""
    return _release_pending(using, [id for (id,) in rows(using, sql.lanes.PENDING_IDS, {"queue": queue})])


def _release_pending(using: str, pending: list[int]) -> int:
    some = chunks(pending, MOST_KEYS)
    return sum(in_transaction(using, partial(_release_some, using, ids)) for ids in some)


def _release_some(using: str, ids: list[int]) -> int:
    """Try these pending releases; return the number of lanes that were released."""
    found = rows(using, sql.lanes.PENDING_LANES, {"ids": ids})
    pending = {Lane(*lane) for _, *lane in found}
    locked = Locked(using, pending, pauses=())
    if not pending or locked.later:  # later: in a caller's strict transaction, which cannot judge a lane
        return 0
    left = locked.refused | _release(using, pending - locked.refused)
    if done := [id for id, *lane in found if Lane(*lane) not in left]:
        execute(using, sql.lanes.FORGET_LANES, {"ids": done})
    return len(pending - left)


def _held_lanes(using: str, queue: str) -> set[Lane]:
    """Every lane of this queue in which a job is held."""
    found = (
        Job.objects.using(using)
        .filter(queue=queue, policy__in=sorted(LANED), hold__isnull=False)
        .order_by()
        .values_list("queue_id", "policy", "singleton_key")
        .distinct()
    )
    return {Lane(*row) for row in found}


def release_held(using: str, queue: str) -> None:
    """Release every lane of this queue in which a job is held."""
    release_each(using, _held_lanes(using, queue))


def leaves_of(using: str, queues: Iterable[str]) -> dict[str, str]:
    """The part of the job table of each queue; the common part for a queue that does not exist."""
    found = Queue.objects.using(using).filter(name__in=queues, partition=True).values_list("name", flat=True)
    partitioned = set(found)
    return {queue: leaf_of(queue, queue in partitioned) for queue in queues}


def _by_queue(lanes: Iterable[Lane]) -> dict[tuple[str, str], set[str]]:
    grouped: dict[tuple[str, str], set[str]] = defaultdict(set)
    for lane in lanes:
        grouped[lane.queue, lane.policy].add(lane.key)
    return grouped


def chunks(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
