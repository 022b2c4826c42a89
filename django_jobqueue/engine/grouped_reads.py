"""Grouped reads: several jobs of a group at once, in the order of their sends, and to one reader at a time.

A reader reads the queue in order for groups with a fetchable head, locks these groups, and reads them again in a
statement that begins after that. Groups that another reader has locked, and groups with a running job, are skipped.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, zip_longest
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections

from ..exceptions import InvalidOption
from ..grouping import Grouping
from ..models import Job
from ..policies import QueuePolicy
from ..process_memory import ProcessMemory
from . import sql
from .claims import Claimer
from .lanes import MOST_KEYS
from .sql import grouped_reads
from .transactions import at, in_transaction, joins, rows_of, text_array

ROUNDS = 3  # how often one read tries other groups if another reader had locked or read some of the first
SECOND_LOOKS = 3
FURTHER = 10  # the second look reads this many times as many jobs of the queue as the first
REST = 20  # after a look for jobs without a group that finds none, pause for this many times its duration


class Group(NamedTuple):
    key: str
    priority: int
    position: int

    @property
    def rank(self) -> tuple[int, int]:
        return -self.priority, self.position


class Row(NamedTuple):
    key: str
    tid: str
    id: UUID


Run = list[Row]  # the fetchable jobs at the head of a group, in order


def check_policy(queue: str, policy: str) -> None:
    if policy != QueuePolicy.STANDARD:
        raise InvalidOption(
            "grouping",
            f"queue {queue!r} has the policy {policy!r}",
            hint="Grouped reads are for standard queues and, one job per key, for ordered ones.",
        )


def fetch_grouped(claimer: Claimer, grouping: Grouping, limit: int, release_due: Callable[[], None]) -> list[Job]:
    """Claim jobs by group; look again in a moment if other readers had locked every group."""
    own = not joins(connections[claimer.using])
    for looks_left in reversed(range(SECOND_LOOKS)):
        reader = in_transaction(claimer.using, partial(_read, claimer, grouping, limit, release_due))
        if reader.claimed or not reader.refused or not looks_left or not own:
            break
        time.sleep(random.uniform(0.001, 0.005))
    return reader.claimed


def _read(claimer: Claimer, grouping: Grouping, limit: int, release_due: Callable[[], None]) -> _Reader:
    reader = _Reader(claimer, grouping, limit)
    release_due()
    reader.read()
    return reader


class _Reader:
    """One grouped read: the groups it has tried to lock, and the jobs it has claimed."""

    def __init__(self, claimer: Claimer, grouping: Grouping, limit: int) -> None:
        self.claimer, self.grouping, self.limit = claimer, grouping, limit
        self.claimed: list[Job] = []
        self.asked: set[str] = set()
        self.refused = False

    def read(self) -> None:
        for _ in range(ROUNDS):
            room = self.limit - len(self.claimed)
            keys = self._needed(room)
            mine = self._lock(keys)
            runs = self._runs_within(mine, room)
            claimed = self._claim(choose(self.grouping, runs, room))
            self.claimed += claimed
            # If a group had fetchable jobs when it was chosen and has none now, another reader was quicker.
            is_all = len(mine) == len(keys) and all(runs) and (claimed or not keys)
            if len(self.claimed) == self.limit or is_all:
                break

    # --------------------------------------------------------------------------------------------- which groups

    def _needed(self, number: int) -> list[str]:
        """The first groups that together have this ``number`` of jobs, and no more groups than may be locked."""
        most = min(number, MOST_KEYS - len(self.asked))
        ranked = self._ranked(most)
        if self.grouping != Grouping.FILL:
            return list(islice(ranked, most))
        keys: list[str] = []
        size = 1
        while number > 0 and len(keys) < most and (some := list(islice(ranked, size))):
            runs = self._runs(some, number)
            for key in some[: most - len(keys)]:
                if number > 0 and runs[key]:
                    keys.append(key)
                    number -= len(runs[key])
            size *= 4
        return keys

    def _ranked(self, most: int) -> Iterator[str]:
        """The groups with a fetchable head, the oldest first.

        First by reading jobs in order, because the heads of many small groups lie in front; then group by group,
        because all jobs in front may belong to one large group.
        """
        yielded: set[str] = set()
        near = 4 * most + 100
        for rows in (near, FURTHER * near):
            seen, heads = self._in_front(rows, most + len(yielded))
            yield from _new(heads, yielded)
            if seen < rows or len(yielded) >= most:
                return
            if FURTHER * len(yielded) < most:
                break  # the second look would not find enough groups either
        heads = [Group(*row) for row in self._rows(grouped_reads.GROUPS_BY_KEY, groups=most + len(yielded))]
        if "" not in yielded and "" not in self.asked:
            heads += self._look_out()
        yield from _new(heads, yielded)

    def _in_front(self, rows: int, groups: int) -> tuple[int, list[Group]]:
        statement = grouped_reads.GROUPS_IN_FRONT
        ((seen, has_others, groups_as_json),) = self._rows(statement, rows=rows, groups=groups)
        heads = [Group(*head) for head in json.loads(groups_as_json)]
        if has_others and "" not in self.asked:
            heads += self._without_group()
        return seen, heads

    def _without_group(self) -> list[Group]:
        jobs = self._rows(grouped_reads.JOBS_WITHOUT_GROUP, depth=1)
        return [Group("", priority, position) for *_, goes, priority, position in jobs if goes]

    def _look_out(self) -> list[Group]:
        """The jobs without a group, if none lies in front.

        If there are none, this reads all waiting jobs. So a process that found none pauses before it looks again.
        """
        place = (self.claimer.using, self.claimer.queue)
        begin = time.monotonic()
        if begin < _rests.until.get(place, 0.0):
            return []
        heads = self._without_group()
        end = time.monotonic()
        _rests.until[place] = 0.0 if heads else end + REST * (end - begin)
        return heads

    # ----------------------------------------------------------------------------------------------- which jobs

    def _lock(self, keys: list[str]) -> list[str]:
        """Lock these groups, and return those that no other reader has locked, in their order."""
        if not keys:
            return []
        self.asked.update(keys)
        params = {"queue": self.claimer.queue, "keys": text_array(keys)}
        got = {key for key, is_ours, _ in self._run(sql.lanes.TRY_KEYS, params) if is_ours}
        self.refused = self.refused or len(got) < len(keys)
        return [key for key in keys if key in got]

    def _runs_within(self, keys: list[str], limit: int) -> list[Run]:
        """The fetchable jobs of each group, reading no more than needed."""
        if not keys:
            return []
        depth = 1 if self.grouping == Grouping.HEAD else limit
        if self.grouping == Grouping.ROUND_ROBIN:
            depth = -(-limit // len(keys))
        while True:
            runs = self._runs(keys, depth)
            number = sum(map(len, runs.values()))
            is_all = all(len(run) < depth for run in runs.values())
            if self.grouping != Grouping.ROUND_ROBIN or number >= limit or is_all:
                return list(runs.values())
            depth = min(2 * depth, limit)

    def _runs(self, keys: list[str], depth: int) -> dict[str, Run]:
        jobs = []
        if with_name := [key for key in keys if key]:
            jobs += self._rows(grouped_reads.JOBS_OF_GROUPS, keys=with_name, depth=depth)
        if "" in keys:
            jobs += [row[:4] for row in self._rows(grouped_reads.JOBS_WITHOUT_GROUP, depth=depth)]
        runs: dict[str, Run] = {key: [] for key in keys}
        stopped = set()
        for key, tid, id, goes in jobs:
            if goes and key not in stopped:
                runs[key].append(Row(key, tid, id))
            else:
                stopped.add(key)
        return runs

    def _claim(self, chosen: list[Row]) -> list[Job]:
        if not chosen:
            return []
        places = {row.id: place for place, row in enumerate(chosen)}
        params = {
            **self.claimer.assignment,
            "keys": [row.key for row in chosen],
            "places": list(places.values()),
            "tids": [row.tid for row in chosen],
        }
        jobs = self.claimer.jobs(self._run(sql.fetch.CLAIM_GROUPED, params))
        for job in jobs:
            job.grouped = True
        return sorted(jobs, key=lambda job: places[job.id])

    def _rows(self, statement: str, **params: object) -> list[tuple[Any, ...]]:
        claimer = self.claimer
        always = {"queue": claimer.queue, "tags": claimer.tags, "skip_names": claimer.skip_names}
        return self._run(statement, {**always, "without": sorted(self.asked), **params})

    def _run(self, statement: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        claimer = self.claimer
        return rows_of(claimer.using, at(claimer.leaf, statement, claimer.columns), params)


class Rests(ProcessMemory):
    """Until when this process does not look for jobs without a group, by database and queue."""

    def __init__(self) -> None:
        super().__init__()
        self.until: dict[tuple[str, str], float] = {}  # monotonic time

    def forget(self) -> None:
        self.until.clear()


_rests = Rests()


def _new(heads: Iterable[Group], yielded: set[str]) -> Iterator[str]:
    for head in sorted(heads, key=lambda head: head.rank):
        if head.key not in yielded:
            yielded.add(head.key)
            yield head.key


def choose(grouping: Grouping, runs: list[Run], limit: int) -> list[Row]:
    """The jobs of these groups in the order in which they are returned."""
    if grouping == Grouping.FILL:
        return [row for run in runs for row in run][:limit]
    layers = zip_longest(*runs)
    if grouping == Grouping.HEAD:
        layers = islice(layers, 1)  # type: ignore[assignment]
    return [row for layer in layers for row in layer if row is not None][:limit]
