"""Runs that the database can name: each handler returns a token of its run, so that ``output`` says which one counted.

The history lies in a file, because the database of a failover forgets. Times are those of the monotonic clock, which
all processes of a machine share.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from django_jobqueue.handlers import JobContext
from django_jobqueue.models import Job

from .cluster import Cluster

SIGN_OF_LIFE_SECONDS = 0.05

ROWS = """
SELECT id::text, queue_id, singleton_key, (data->>'n')::int, state, retry_count, attempt, output->>'token',
    to_char(assigned_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US')
FROM jobqueue_job ORDER BY seq
"""


class Run(NamedTuple):
    """One run of a handler. ``ended`` is its last sign of life if its process was killed."""

    token: str
    job: str
    key: str
    n: int
    attempt: int
    claimed: str  # when the database made the claim, as the worker was told
    pid: int
    began: float
    ended: float
    how: str  # the last event: "began", "lives", "stopped" or "ended"
    recorded: float | None  # when the worker took its completion as recorded


class Row(NamedTuple):
    """A job as the database has it in the end. ``claimed`` is when the claim was made that it last held."""

    job: str
    queue: str
    key: str
    n: int
    state: str
    retry_count: int
    attempt: int
    token: str | None
    claimed: str | None


# ------------------------------------------------------------------------------ written by the workers' processes


def follow(context: JobContext, n: int, seconds: float) -> dict[str, str]:
    """Work for so many seconds, with a line in the history for the beginning, each sign of life, and the end."""
    token = str(uuid4())
    _write("began", token, *_claim(context.job), context.job.singleton_key, n, context.attempt)
    try:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SIGN_OF_LIFE_SECONDS))
            _write("lives", token)
    except BaseException:
        _write("stopped", token)
        raise
    _write("ended", token)
    return {"token": token}


def note_recorded(*, job: Job, ending: str, **facts: Any) -> None:
    """A receiver of ``job_finished``, which is sent when the database has answered."""
    if ending == "completed":
        _write("recorded", "", *_claim(job))


def _claim(job: Job) -> tuple[str, str]:
    """The job and the time of its claim, as it was claimed: not loaded again, which would show a later claim."""
    return str(job.pk), job.__dict__["assigned_at"].strftime("%Y-%m-%dT%H:%M:%S.%f")


def _write(event: str, token: str, *facts: Any) -> None:
    line = json.dumps([event, token, os.getpid(), time.monotonic(), *facts]) + "\n"
    file = os.open(os.environ["FAULTS_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


# ---------------------------------------------------------------------------------------------- read by the tests


def read_runs(path: Path) -> list[Run]:
    """The runs in the order of their beginnings."""
    runs: dict[str, Run] = {}
    recorded: dict[tuple[str, str, int], float] = {}
    text = path.read_text() if path.exists() else ""
    for line in text.rpartition("\n")[0].splitlines():
        event, token, pid, at, *facts = json.loads(line)
        if event == "recorded":
            recorded[facts[0], facts[1], pid] = at
        elif event == "began":
            job, claimed, key, n, attempt = facts
            runs[token] = Run(token, job, key, n, attempt, claimed, pid, at, at, event, None)
        else:
            runs[token] = runs[token]._replace(ended=at, how=event)
    told = (run._replace(recorded=recorded.get((run.job, run.claimed, run.pid))) for run in runs.values())
    return sorted(told, key=lambda run: run.began)


def read_rows(cluster: Cluster) -> list[Row]:
    return [Row(*values) for values in cluster.sql(ROWS)]


Pair = tuple[Run, Run]


@dataclass
class Findings:
    """What the history and the database say together."""

    runs: list[Run]
    rows: list[Row]
    stale: list[tuple[Row, Run | None]] = field(default_factory=list)
    claims_run_twice: list[Pair] = field(default_factory=list)
    job_overlaps: list[Pair] = field(default_factory=list)  # of a job with itself
    key_overlaps: list[Pair] = field(default_factory=list)  # of two jobs of a key
    out_of_order: list[Pair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accepted = {row.job: self._accepted(row) for row in self.rows if row.state == "completed"}
        self.stale = [
            (row, run)
            for row in self.rows
            if row.job in self.accepted and ((run := self.accepted[row.job]) is None or run.claimed != row.claimed)
        ]
        for runs in _by(self.runs, "job", "claimed").values():
            self.claims_run_twice += itertools.pairwise(runs)
        for runs in _by(self.runs, "key").values():
            overlaps = list(_overlaps(runs))
            self.job_overlaps += [(a, b) for a, b in overlaps if a.job == b.job]
            self.key_overlaps += [(a, b) for a, b in overlaps if a.job != b.job]
            self.out_of_order += self._late(runs)

    def _accepted(self, row: Row) -> Run | None:
        """The run whose result the database has."""
        return next((run for run in self.runs if run.token == row.token), None)

    def _late(self, runs: list[Run]) -> list[Pair]:
        """Runs that began although a later job of their key had begun its accepted run."""
        counted = [run for run in runs if self.accepted.get(run.job) == run]
        return [(a, b) for a in counted for b in runs if b.n < a.n and b.began > a.began]

    def first_after(self, moment: float, pid: int) -> float:
        """When a process first began a run after that moment; infinite if it did not."""
        return min((run.began for run in self.runs if run.pid == pid and run.began > moment), default=float("inf"))

    # What was acknowledged, and is gone ------------------------------------------------------------------------

    def reopened(self, before: float = float("inf")) -> list[Run]:
        """Runs whose completion a worker took as recorded before that moment, and which the database does not have."""
        return [
            run
            for run in self.runs
            if run.recorded is not None and run.recorded < before and self.accepted.get(run.job) != run
        ]

    def lost(self, sent: dict[str, float], before: float = float("inf")) -> list[str]:
        """Jobs whose send was acknowledged before that moment, and which the database does not have."""
        present = {row.job for row in self.rows}
        return [job for job, at in sent.items() if at < before and job not in present]

    def unfinished(self) -> list[Row]:
        return [row for row in self.rows if row.state != "completed"]

    def charged(self) -> list[Row]:
        return [row for row in self.rows if row.retry_count]

    def repeated(self) -> int:
        """How many runs there were beyond the first of each job."""
        return len(self.runs) - len({run.job for run in self.runs})


def after(pairs: Iterable[Pair], moment: float) -> list[Pair]:
    """Overlaps that were still going on at that moment, or began after it."""
    return [(a, b) for a, b in pairs if min(a.ended, b.ended) > moment]


def _by(runs: Iterable[Run], *names: str) -> dict[tuple[Any, ...], list[Run]]:
    grouped: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        grouped[tuple(getattr(run, name) for name in names)].append(run)
    return grouped


def _overlaps(runs: list[Run]) -> Iterable[Pair]:
    """Pairs of runs that were inside their handlers at the same time; ``runs`` in the order of their beginnings."""
    for place, run in enumerate(runs):
        for later in runs[place + 1 :]:
            if later.began >= run.ended:
                continue
            yield run, later
