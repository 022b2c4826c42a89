"""Strict order under fire: many jobs of many keys, while children are killed at random."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import FINAL

from .history import History, check
from .runner import Runner

LANES = "lanes"
AT_ONCE = 1000


@dataclass(frozen=True)
class Plan:
    """What happens in one run."""

    jobs: int
    keys: int
    kills: int
    every: float  # seconds from kill to kill
    seconds: float  # that a handler takes
    seed: int = 0
    patience: float = 60.0  # seconds without progress that count as stuck


# Kills are not the jobs' fault here, so none of them may be put aside for its crashes.
SETTINGS = {"CRASH_LIMIT": 1000}


def send_all(plan: Plan) -> None:
    items: list[services.Item] = [
        {"name": "lane-work", "data": {"seconds": plan.seconds}, "singleton_key": f"key {n % plan.keys}",
         "retry_limit": None}
        for n in range(plan.jobs)
    ]  # fmt: skip
    for first in range(0, len(items), AT_ONCE):
        services.send_many(LANES, items[first : first + AT_ONCE])


def shoot(plan: Plan, worker: Runner, history: History) -> int:
    """Kill a random child again and again, until all jobs have ended; how often."""
    chance = random.Random(plan.seed)
    unfinished = Job.objects.in_queue(LANES).exclude(state__in=sorted(FINAL))
    kills, next_kill = 0, time.monotonic() + plan.every
    left, moved_at = plan.jobs, time.monotonic()
    while left:
        now = time.monotonic()
        if now >= next_kill and kills < plan.kills:
            next_kill = now + plan.every
            if children := worker.children():
                kill(chance.choice(children), history)
                kills += 1
        before, left = left, unfinished.count()
        moved_at = now if left < before else moved_at
        assert now - moved_at < plan.patience, f"{left} jobs left, and nothing has ended for {plan.patience:g} seconds"
        assert worker.process.poll() is None, "the worker ended"
        time.sleep(0.05)
    return kills


def kill(pid: int, history: History) -> None:
    history.killed[pid] = time.monotonic()
    os.kill(pid, signal.SIGKILL)


def prove(plan: Plan, history: History) -> None:
    """All jobs have ended, in order and one at a time for each key, and no lane is stranded."""
    assert Job.objects.in_queue(LANES).count() == plan.jobs
    check(history, LANES)
    assert services.check_lanes() == []
