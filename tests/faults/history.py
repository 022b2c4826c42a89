"""What handlers write down themselves, and what must follow from it.

Each begin and each end of a handler is one line in a file that is only appended to, with the clock that all processes
of a machine share; so it is true whatever the database was told, and it survives every kill.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

from django_jobqueue.models import Job
from django_jobqueue.states import DEAD, FINAL, JobState

VARIABLE = "FAULTS_HISTORY"


def note(job: Job, event: str, **facts: Any) -> None:
    """Append one line; a single write, so that lines of many processes never mix."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    line = {"event": event, "job": str(job.pk), "key": job.singleton_key, "attempt": job.attempt, "pid": os.getpid(),
            "thread": threading.get_ident(), "at": time.monotonic(), **facts}  # fmt: skip
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def recorded(job: Job, **facts: Any) -> Iterator[None]:
    """Around the work of a handler: its begin, and its end if it came to one, whatever the end was."""
    note(job, "begin", **facts)
    try:
        yield
    finally:
        note(job, "end")


@dataclass
class Run:
    """One run of a handler; ``ended`` is empty if its process died meanwhile."""

    job: UUID
    key: str
    attempt: int
    pid: int
    thread: int
    began: float
    ended: float | None = None


class History:
    """The file, read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.killed: dict[int, float] = {}  # process → when it was killed at the earliest

    def lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines() if line]

    def runs(self, job: Job | UUID | None = None) -> list[Run]:
        """The runs, in the order in which they began."""
        found: list[Run] = []
        last: dict[tuple[str, int], Run] = {}
        for line in self.lines():
            if line["event"] == "begin":
                run = Run(UUID(line["job"]), line["key"], line["attempt"], line["pid"], line["thread"], line["at"])
                found.append(run)
                last[line["job"], line["attempt"]] = run
            elif line["event"] == "end":
                last[line["job"], line["attempt"]].ended = line["at"]
        wanted = job.pk if isinstance(job, Job) else job
        return sorted((run for run in found if wanted in (None, run.job)), key=lambda run: run.began)

    def begun(self, job: Job | UUID) -> int:
        return len(self.runs(job))

    def end_of(self, run: Run) -> float:
        """When it ended at the earliest: if its process was killed, not before the kill."""
        return run.ended if run.ended is not None else self.killed.get(run.pid, run.began)


def check(history: History, queue: str, *, ordered: bool = True) -> None:
    """Every law that a queue's history and its rows must obey; the message names the one that was broken."""
    jobs = {job.pk: job for job in Job.objects.in_queue(queue).order_by("seq")}
    runs = [run for run in history.runs() if run.job in jobs]
    by_job: Mapping[UUID, list[Run]] = defaultdict(list)
    by_key: Mapping[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
        by_key[run.key].append(run)
    _nothing_is_lost(jobs, by_job)
    _attempts_count_up(by_job)
    if ordered:
        _no_overlap(history, by_key)
        _in_order(jobs, by_key)
        _blocked_keys_stay_blocked(jobs, by_job)


def _nothing_is_lost(jobs: Mapping[UUID, Job], by_job: Mapping[UUID, list[Run]]) -> None:
    for id, job in jobs.items():
        assert job.state in FINAL, f"{id} ({job.singleton_key}) is {job.state}: it did not end"
        if job.state != JobState.COMPLETED:
            assert job.state in DEAD, f"{id} is {job.state}, which no test asked for"
            continue
        accepted = [run for run in by_job[id] if run.attempt == job.attempt]
        assert len(accepted) == 1, f"{id} was completed by attempt {job.attempt}, which ran {len(accepted)} times"
        assert accepted[0].ended is not None, f"{id} was completed, and its handler did not end"
        late = [run.attempt for run in by_job[id] if run.began > accepted[0].ended]
        assert not late, f"{id} ran again (attempt {late}) after attempt {job.attempt} had completed it"


def _attempts_count_up(by_job: Mapping[UUID, list[Run]]) -> None:
    for id, runs in by_job.items():
        numbers = [run.attempt for run in runs]
        assert all(a < b for a, b in pairwise(numbers)), f"attempts of {id}: {numbers}"


def _no_overlap(history: History, by_key: Mapping[str, list[Run]]) -> None:
    for key, runs in by_key.items():
        for before, after in pairwise(runs):
            assert history.end_of(before) <= after.began, f"two handlers of {key} at once: {before} and {after}"


def _in_order(jobs: Mapping[UUID, Job], by_key: Mapping[str, list[Run]]) -> None:
    for key, runs in by_key.items():
        firsts = list(dict.fromkeys(run.job for run in runs))
        expected = sorted(firsts, key=lambda id: jobs[id].seq)
        assert firsts == expected, f"order of {key}"
        changes = [a.job for a, b in pairwise(runs) if a.job != b.job]
        assert len(changes) == len(set(changes)), f"jobs of {key} alternate"


def _blocked_keys_stay_blocked(jobs: Mapping[UUID, Job], by_job: Mapping[UUID, list[Run]]) -> None:
    blocked = {job.singleton_key: job.seq for job in jobs.values() if job.state in DEAD}
    passed = [id for id, job in jobs.items() if job.seq > blocked.get(job.singleton_key, job.seq) and by_job.get(id)]
    assert not passed, f"{passed} ran although an earlier job blocks their key"
