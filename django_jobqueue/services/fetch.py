"""Claiming jobs: each job for one worker, and in a lane one job at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import ProgrammingError, connections
from psycopg import errors

from ..claims import draw_number
from ..engine import sql
from ..engine.candidates import Candidate, Part, Stretch, tagged_candidates
from ..engine.claims import Bookmark, Claimer, Place
from ..engine.databases import Rows, database, execute, named, rows
from ..engine.grouped_reads import check_policy, fetch_grouped
from ..engine.lanes import MOST_KEYS, release_pending_of
from ..engine.notifications import fetch_waiting
from ..engine.queues import KnownQueue, QueueChanged, known_queues, no_queue
from ..engine.recovery import end_leases
from ..engine.refused_keys import Refusals, refusals_of
from ..engine.transactions import (
    READ_COMMITTED,
    Statement,
    at,
    at_once,
    in_transaction,
    make_durable,
    rows_of,
    rows_of_each,
    text_array,
)
from ..exceptions import UnsafeIsolation
from ..grouping import Grouping
from ..identifiers import as_uuid
from ..models import Job
from ..options import YEAR, check_grouping, check_int, check_seconds
from ..partitions import leaf_of
from ..policies import LANED, ORDERED
from ..states import JobState
from ..text import check_tags, check_text

MOST_JOBS = 10_000
RELEASED_AT_ONCE = 1_000
HELD_AT_ONCE = 5_000
ROUNDS = 5  # how often one fetch looks further along the queue if it could not claim the jobs it saw
FEW_SPARE = 0.25  # candidates beyond those wanted: most fetchable jobs are heads
MANY_SPARE = 2  # otherwise many may lie in front of a head
SECOND_LOOKS = 3  # how often it looks again if every key it saw was locked by another transaction


def fetch(
    queue: str,
    limit: int = 1,
    *,
    tags: Iterable[str] = (),
    worker: str = "",
    incarnation: UUID | None = None,
    grouping: Grouping | str | None = None,
    lease: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    poll_interval: float | timedelta | None = None,
    bookmark: Bookmark | None = None,
    whole: bool = True,
    skip_names: Iterable[str] = (),
    using: str | None = None,
) -> list[Job]:
    """Claim up to ``limit`` fetchable jobs and return them: the highest priority first, then the oldest.

    The returned jobs are active. The list is empty if the queue has no fetchable jobs or is paused. On an ordered
    queue it contains at most one job of each key, the head of its lane.

    With ``tags``, only jobs that carry all of these tags are claimed. With ``grouping``, the jobs of a group
    (``group_key``) are returned in the order they were sent, and only one reader at a time gets jobs of a group. With
    ``lease``, jobs that are not finished in this time return to the queue without using up a retry. With ``wait``, the
    call waits up to this long for a job: it looks again when it is notified, and every ``poll_interval`` (default:
    ``POLL_SECONDS``). A ``bookmark`` makes repeated fetches from a busy queue faster. With ``whole=False`` the jobs
    carry only the columns that are needed to finish them; other columns are loaded when they are read. Jobs whose
    handler is in ``skip_names`` are left to other workers; on an ordered queue, and in a group, so are those behind
    them.

    Raises ``QueueNotFound``, ``InvalidOption``, and ``UnsafeIsolation`` inside a transaction that is stricter than
    READ COMMITTED.
    """
    limit = check_int(limit, option="limit", minimum=1, maximum=MOST_JOBS)
    tagged = check_tags(tags) if tags else []
    assignment = {
        "worker": check_text(worker, option="worker", max_length=255),
        "incarnation": None if incarnation is None else as_uuid(incarnation, option="incarnation"),
        "lease": None if lease is None else check_seconds(lease, option="lease", minimum=0.001, maximum=YEAR),
        "number": draw_number(),
    }
    using, queue = database(using), named(queue)
    columns = sql.parts.CLAIMED if whole else sql.parts.NEEDED
    claimer = Claimer(using, queue, tagged, assignment, bookmark, columns, skip_names=list(skip_names))
    order = None if grouping is None else check_grouping(grouping)
    if wait is None:
        return _fetch_now(claimer, order, limit)
    work = partial(_fetch_now, claimer, order, limit)
    return fetch_waiting(claimer.using, claimer.queue, work, wait, poll_interval)


def _fetch_now(claimer: Claimer, grouping: Grouping | None, limit: int) -> list[Job]:
    known = known_queues.get(claimer.using, claimer.queue)
    own = connections[claimer.using].get_autocommit()  # else the statements become part of the caller's transaction
    if known is not None and not claimer.tags and grouping is None and own:
        with suppress(QueueChanged):
            return _fetch_known(claimer._replace(**known._asdict()), limit, own)
    current = _look_at_queue(claimer, own)
    if current is None:
        return []
    if not own:
        make_durable(claimer.using)
    claimer = claimer._replace(**current._asdict())
    if grouping is not None and current.policy != ORDERED:  # an ordered queue returns one job per key in any case
        check_policy(claimer.queue, current.policy)
        return fetch_grouped(claimer, grouping, limit, partial(_release_due, claimer))
    if claimer.tags and current.policy not in LANED:
        return in_transaction(claimer.using, partial(_fetch_tagged, claimer, limit))
    known_queues.remember(claimer.using, claimer.queue, current)
    with suppress(QueueChanged):  # the queue was deleted after it was read: the next fetch raises QueueNotFound
        return _fetch_known(claimer, limit, own)
    return []


def _fetch_known(claimer: Claimer, limit: int, own: bool) -> list[Job]:
    """Fetch from a queue of this policy and partition; if it has others by now, forget them, and raise."""
    try:
        return _fetch_lanes(claimer, limit, own) if claimer.policy in LANED else _fetch_free(claimer, limit)
    except QueueChanged:
        known_queues.drop(claimer.using, claimer.queue)
        raise
    except ProgrammingError as error:
        if not (isinstance(error.__cause__, errors.UndefinedTable) and own):
            raise
        known_queues.drop(claimer.using, claimer.queue)
        raise QueueChanged from error  # its own partition has been dropped


def _look_at_queue(claimer: Claimer, own: bool) -> KnownQueue | None:
    """The policy and partition of the queue; ``None`` while it is paused."""
    queue_rows = rows(claimer.using, sql.fetch.LOOK_AT_QUEUE, {"queue": claimer.queue})
    if not queue_rows:
        raise no_queue(claimer.queue, claimer.using)
    policy, partition, paused, isolation = queue_rows[0]
    if not own and isolation != READ_COMMITTED:
        raise UnsafeIsolation(isolation)
    return None if paused else KnownQueue(policy, partition, leaf_of(claimer.queue, partition))


def _look(claimer: Claimer, *, front: bool) -> list[Statement]:
    """The statements that read the queue and, before its front is read, lift the holds of due jobs."""
    statements: list[Statement] = [(at(claimer.leaf, sql.fetch.LOOK_BESIDE), {"queue": claimer.queue})]
    if front:
        if claimer.bookmark is not None:
            claimer.bookmark.looked()
        due = {"queue": claimer.queue, "most": RELEASED_AT_ONCE}
        statements.append((at(claimer.leaf, sql.fetch.RELEASE_DUE), due))
    return statements


def _as_read(claimer: Claimer) -> dict[str, Any]:
    """The queue as it was read before: no job is selected if it has changed, or is paused by now."""
    known = {"queue": claimer.queue, "policy": claimer.policy, "partition": claimer.partition}
    return {**known, "skip_names": text_array(claimer.skip_names)}


def _check_unchanged(claimer: Claimer, look: Rows) -> tuple[bool, bool | None]:
    """Whether the queue is paused, and whether a lease has ended. Raises ``QueueChanged``."""
    if not look or look[0][:2] != (claimer.policy, claimer.partition):
        raise QueueChanged
    _, _, paused, leases = look[0]
    return paused, leases


def _release_due(claimer: Claimer) -> None:
    """Lift the holds of jobs that are due, and return jobs whose lease has ended to the queue."""
    using, queue, leaf = claimer.using, claimer.queue, claimer.leaf
    [(due, leases)] = rows_of(using, at(leaf, sql.fetch.LOOK_AT_TIMES), {"queue": queue}, by_name=True)
    if due:
        execute(using, at(leaf, sql.fetch.RELEASE_DUE), {"queue": queue, "most": RELEASED_AT_ONCE})
    if leases:
        end_leases(using, queue)


# ------------------------------------------------------------------------------------------ jobs without lanes


def _fetch_free(claimer: Claimer, limit: int) -> list[Job]:
    """Read the queue, lift the holds of due jobs, and claim, all in one round trip."""
    claimed: list[Job] = []
    mark = claimer.bookmark
    if mark is not None and mark.is_fresh():
        claimed = _claim_free(claimer, limit, beyond=mark.place)
    if len(claimed) < limit:
        claimed += _claim_free(claimer, limit - len(claimed))
    return claimed


def _claim_free(claimer: Claimer, limit: int, beyond: Place | None = None) -> list[Job]:
    statements = _look(claimer, front=beyond is None)
    params = {**_as_read(claimer), **claimer.assignment, "limit": limit}
    claim = sql.fetch.CLAIM_FRONT
    if beyond is not None:
        params["priority"], params["position"] = beyond
        claim = sql.fetch.CLAIM_BEYOND
    statements.append((at(claimer.leaf, claim, claimer.columns), params))
    look, *_, claimed = at_once(claimer.using, statements)
    paused, leases = _check_unchanged(claimer, look)
    jobs = _in_order(claimer, claimed)
    if leases and not paused:
        end_leases(claimer.using, claimer.queue)
        if len(jobs) < limit:
            jobs += _claim_free(claimer, limit - len(jobs), beyond)
    return jobs


def _fetch_tagged(claimer: Claimer, limit: int) -> list[Job]:
    claimed: list[Job] = []
    for stretch in _stretches(claimer):
        candidates = _candidates(claimer, stretch, limit - len(claimed))
        if candidates:
            statement, params = _claim(claimer, [candidate.tid for candidate in candidates])
            claimed += _in_order(claimer, rows_of(claimer.using, statement, params, by_name=True))
        if len(claimed) == limit:
            break
    return claimed


# ------------------------------------------------------------------------------------------------- candidates


def _stretches(claimer: Claimer) -> list[Stretch]:
    mark = claimer.bookmark
    if mark is None or not mark.is_fresh():
        return [Stretch()]
    return [Stretch(Part.ABOVE, mark.place), Stretch(Part.WITHIN, mark.place), Stretch()]


def _candidates(claimer: Claimer, stretch: Stretch, limit: int, without: Collection[str] = ()) -> list[Candidate]:
    """Lock and return fetchable jobs in order, without these keys; rows locked by another transaction are skipped."""
    if stretch.part is Part.ALL:
        if claimer.bookmark is not None:
            claimer.bookmark.looked()
        _release_due(claimer)
    if claimer.tags:
        return tagged_candidates(claimer, stretch, limit, without)
    statement, params = _heads(claimer, stretch, limit, without)
    return [Candidate(*row) for row in rows_of(claimer.using, statement, params, by_name=True)]


def _heads(claimer: Claimer, stretch: Stretch, limit: int, without: Collection[str]) -> Statement:
    params = {**_as_read(claimer), "limit": limit, "without": text_array(sorted(without))}
    params["priority"], params["position"] = stretch.place
    return at(claimer.leaf, stretch.part.value), params


def _claim(claimer: Claimer, tids: list[str], xmin: int | None = None) -> Statement:
    params = {**claimer.assignment, "xmin": xmin, "tids": text_array(tids)}
    return at(claimer.leaf, sql.fetch.CLAIM, claimer.columns), params


def _in_order(claimer: Claimer, claimed: list[tuple[Any, ...]]) -> list[Job]:
    """The claimed jobs in the order of the fetch; the statement returns them in any order."""
    claimed.sort()  # each row begins with the negative priority and the position; no two rows have the same
    if claimed and claimer.bookmark is not None:
        priority, position, *_ = claimed[-1]
        claimer.bookmark.move(-priority, position)
    return claimer.jobs(claimed)


# ------------------------------------------------------------------------------------------------------ lanes


def _fetch_lanes(claimer: Claimer, limit: int, own: bool) -> list[Job]:
    """Claim heads of lanes, and look again at once if the first look only put candidates on hold."""
    refusals = refusals_of(claimer.using, claimer.queue)
    looks, all_keys = SECOND_LOOKS, False
    while True:
        long_refused = refusals.passed_over()
        without = set() if all_keys else long_refused
        stretches = _stretches(claimer)
        first = _look(claimer, front=len(stretches) == 1)
        if not claimer.tags:
            first.append(_heads(claimer, stretches[0], _most(limit, FEW_SPARE), without))
        work = partial(_claim_heads, claimer, limit, refusals, without, stretches)
        judge = in_transaction(claimer.using, work, first)
        if judge is None or judge.claimed:
            return judge.claimed if judge else []
        if long_refused and not all_keys:
            all_keys = True  # no other job can be fetched, so the skipped keys are tried too
            continue
        if not own:
            return []
        if judge.held and not judge.saw_all:
            continue  # the candidates it saw are on hold now, so the next look begins behind them
        looks -= 1
        if looks and release_pending_of(claimer.queue, claimer.using):
            continue
        if judge.newly_refused <= long_refused or not looks:
            return []
        time.sleep(random.uniform(0.001, 0.005))


def _most(room: int, spare: float) -> int:
    """How many candidates to read at once."""
    return min(int((1 + spare) * room) + 10, 1_000)


def _claim_heads(
    claimer: Claimer,
    limit: int,
    refusals: Refusals,
    without: set[str],
    stretches: list[Stretch],
    look: Rows,
    *more: Rows,
) -> Judge | None:
    """Claim heads in the order of the queue, until there are enough; ``None`` while the queue is paused."""
    paused, leases = _check_unchanged(claimer, look)
    if paused:
        return None
    judge = Judge(claimer, refusals, without)
    candidates = None if claimer.tags or leases else [Candidate(*row) for row in more[-1]]
    for stretch in stretches:
        judge.claim_along(stretch, limit, candidates)
        candidates = None
        if judge.has_enough(limit):
            break
    return judge


class Judge:
    """Decides, for one fetch, which candidates are claimed and which are put on hold; knows the keys it has locked."""

    def __init__(self, claimer: Claimer, refusals: Refusals, without: Collection[str]) -> None:
        self.claimer, self.refusals = claimer, refusals
        self.ours: set[str] = set()
        self.refused = set(without)
        self.newly_refused: set[str] = set()  # keys that may be free in a moment
        self.claimed: list[Job] = []
        self.held = 0
        self.saw_all = False  # whether it has seen all fetchable jobs
        self.taken: set[str] = set()  # lanes in which this fetch has claimed a job
        self.xmin = 0

    def is_full(self) -> bool:
        """Whether this transaction has locked as many keys as it may."""
        return len(self.ours) >= MOST_KEYS

    def has_enough(self, limit: int) -> bool:
        return len(self.claimed) >= limit or self.is_full()

    def claim_along(self, stretch: Stretch, limit: int, candidates: list[Candidate] | None) -> None:
        """Claim heads along a stretch, some candidates at a time; the first may have been read already."""
        rounds, spare = ROUNDS, FEW_SPARE
        while rounds:
            room, refused = limit - len(self.claimed), len(self.refused)
            most = _most(room, spare)
            if candidates is None:
                candidates = _candidates(self.claimer, stretch, most, self.refused)
            self.claim(candidates, room)
            self.saw_all = len(candidates) < most and not self.is_full()
            if len(candidates) < most or self.has_enough(limit):
                break
            spare = MANY_SPARE
            rounds -= len(self.refused) == refused  # locked keys use up no round, so that the other keys are seen
            stretch = Stretch(Part.BELOW, (candidates[-1].priority, candidates[-1].position))
            candidates = None

    def claim(self, candidates: list[Candidate], room: int) -> None:
        lanes = self._lock_and_look(candidates)
        mine = [candidate for candidate in candidates if candidate.key in self.ours]
        if not mine:
            return
        going, held, blocked = (self._ordered if self.claimer.policy == ORDERED else self._one_running)(mine, lanes)
        self.refusals.forget(candidate.key for candidate in mine if candidate.key not in self.refused)
        self._claim_and_hold(going[:room], held, blocked)

    def _lock_and_look(self, candidates: list[Candidate]) -> Rows:
        """Lock the keys of the candidates, and return what the lanes contain.

        One message, but two statements: the second has a snapshot from after the locks.
        """
        keys = dict.fromkeys(candidate.key for candidate in candidates)
        asked = [key for key in keys if key not in self.ours and key not in self.refused]
        asked = asked[: MOST_KEYS - len(self.ours)]
        lanes = sorted(self.ours.intersection(keys).union(asked))
        if not lanes:
            return []
        claimer, is_ordered = self.claimer, self.claimer.policy == ORDERED
        look = at(claimer.leaf, sql.lanes.LOOK_AT_LANES if is_ordered else sql.lanes.LOOK_AT_RUNNING)
        params = {"queue": claimer.queue, "policy": claimer.policy, "lanes": text_array(lanes)}
        lock = {"queue": claimer.queue, "keys": text_array(asked)}
        statements = [(sql.lanes.TRY_KEYS, lock), (look, params)]
        locked, answers = rows_of_each(claimer.using, statements, by_name=is_ordered)
        got = {key for key, is_ours, _ in locked if is_ours}
        self.xmin = self.xmin or min((xmin for *_, xmin in locked), default=0)
        self.ours |= got
        self._refuse([key for key in asked if key not in got])
        return answers

    def _refuse(self, keys: Collection[str]) -> None:
        if keys:
            self.refusals.note(keys)
            self.refused.update(keys)
            self.newly_refused.update(keys)

    def _ordered(self, mine: list[Candidate], lanes: Rows) -> tuple[list[Candidate], list[Candidate], set[str]]:
        states = {key: (is_blocked, head, is_overdue) for key, is_blocked, head, is_overdue in lanes}
        going, held, blocked = [], [], set()
        for candidate in mine:
            is_blocked, head, is_overdue = states[candidate.key]
            if candidate.state != JobState.CREATED:  # it waits for a retry, so it blocks the lane itself
                going.append(candidate)
            elif is_blocked or candidate.key in self.taken:
                held.append(candidate)
                blocked.add(candidate.key)
            elif is_overdue:
                # A due job goes first as soon as its hold is lifted. Another transaction may have locked that job
                # for long, so the key is skipped like a locked key.
                self._refuse([candidate.key])
            elif candidate.seq == head:
                going.append(candidate)
            else:
                held.append(candidate)
        return going, held, blocked

    def _one_running(self, mine: list[Candidate], lanes: Rows) -> tuple[list[Candidate], list[Candidate], set[str]]:
        busy = {key for key, is_running in lanes if is_running}
        going: dict[str, Candidate] = {}
        held = []
        for candidate in mine:
            if candidate.key in busy or candidate.key in self.taken or candidate.key in going:
                held.append(candidate)
            else:
                going[candidate.key] = candidate
        return list(going.values()), held, set()

    def _claim_and_hold(self, going: list[Candidate], held: list[Candidate], blocked: set[str]) -> None:
        self.taken.update(candidate.key for candidate in going)
        self.held += len(held)
        to_claim, to_hold = [candidate.tid for candidate in going], [candidate.tid for candidate in held]
        statements = [_claim(self.claimer, to_claim, self.xmin or None)] if going else []
        if held:
            statements.append((at(self.claimer.leaf, sql.lanes.HOLD_CANDIDATES), {"held": text_array(to_hold)}))
        answers = rows_of_each(self.claimer.using, statements, by_name=True)
        if going:
            self.claimed += _in_order(self.claimer, answers[0])
        if blocked:
            params = {"queue": self.claimer.queue, "keys": sorted(blocked), "most": HELD_AT_ONCE}
            execute(self.claimer.using, at(self.claimer.leaf, sql.lanes.HOLD_LANES), params)
