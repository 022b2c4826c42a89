"""What handlers wrote down themselves, and what must be true of it."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Run(NamedTuple):
    """One attempt as its handler saw it; ``ended`` is its last sign of life if it was killed."""

    job: str
    key: str
    n: int
    attempt: int
    pid: int
    began: float
    ended: float
    finished: bool


def write(event: str, job: str, key: str, n: int, attempt: int) -> None:
    """Append one line, whole or not at all, even if other processes append too."""
    line = json.dumps([event, job, key, n, attempt, os.getpid(), time.monotonic()]) + "\n"
    file = os.open(os.environ["FAULTS_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read(path: Path) -> list[Run]:
    """The runs in the order of their beginnings."""
    events: dict[tuple[str, int, int], list[Any]] = {}
    text = path.read_text() if path.exists() else ""
    for line in text.rpartition("\n")[0].splitlines():  # the last may be half written
        event, job, key, n, attempt, pid, at = json.loads(line)
        place = (job, attempt, pid)
        if event == "began":
            assert place not in events, f"attempt {attempt} of job {n} of key {key} began twice in one process"
            events[place] = [job, key, n, attempt, pid, at, at, False]
        else:
            events[place][6] = at
            events[place][7] = event == "ended"
    return sorted((Run(*values) for values in events.values()), key=lambda run: run.began)


def begun(path: Path) -> int:
    """How many attempts have begun, quicker."""
    return path.read_bytes().count(b'["began"') if path.exists() else 0


def check(runs: Iterable[Run], sent: dict[str, int]) -> int:
    """Prove order, no overlap, no attempt twice and nothing missing; how many runs were repeated.

    ``sent``: how many jobs were sent with each key, numbered from 0 in the order of their sends.
    """
    by_key: dict[str, list[Run]] = defaultdict(list)
    attempts: dict[tuple[str, int], Run] = {}
    last: dict[str, int] = {}
    repeated = 0
    for run in runs:
        by_key[run.key].append(run)
        assert (run.job, run.attempt) not in attempts, (
            f"{run} and {attempts[run.job, run.attempt]}: one claim, two runs"
        )
        attempts[run.job, run.attempt] = run
        assert run.attempt > last.get(run.job, 0), f"{run}: an older claim ran after a newer one"
        repeated += run.job in last
        last[run.job] = run.attempt
    for key, count in sent.items():
        _check_key(by_key[key], count)
    return repeated


def _check_key(runs: list[Run], count: int) -> None:
    numbers = [run.n for run in runs]
    assert sorted(set(numbers)) == list(range(count)), f"of {count} jobs {len(set(numbers))} ran"
    for before, after in itertools.pairwise(runs):
        assert before.ended <= after.began, f"two handlers of a key at once: {before} and {after}"
        assert after.n in (before.n, before.n + 1), f"out of order: {before} and then {after}"


def check_finished(runs: Iterable[Run], sent: dict[str, int]) -> None:
    """Each job has one attempt that came to its end."""
    done = {(run.key, run.n) for run in runs if run.finished}
    missing = [(key, n) for key, count in sent.items() for n in range(count) if (key, n) not in done]
    assert not missing, f"{len(missing)} jobs never ended, such as {missing[:3]}"
