"""What happened in queues over time, from the statistics of each minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ...engine import sql
from ...engine.databases import rows


class StepSums(NamedTuple):
    """What happened in one step of time, and the most waiting jobs and blocked keys in it."""

    at: datetime
    sent: int
    completed: int
    failed: int
    retried: int
    waiting: int | None
    blocked: int | None


class StepTimes(NamedTuple):
    """How long jobs waited and ran in one step of time, as histograms."""

    at: datetime
    waited: list[int]
    ran: list[int]


def sums(queues: Sequence[str], *, since: datetime, step: timedelta, using: str) -> list[StepSums]:
    """What happened in these queues together, in steps of that length; empty steps are left out."""
    return [
        StepSums(at, int(sent), int(completed), int(failed), int(retried), waiting, blocked)
        for at, sent, completed, failed, retried, waiting, blocked in rows(
            using, sql.statistics.STEPS, _params(queues, since, step)
        )
    ]


def times(queues: Sequence[str], *, since: datetime, step: timedelta, using: str) -> list[StepTimes]:
    """How long jobs of these queues waited and ran, in steps of that length; empty steps are left out."""
    return [
        StepTimes(at, [int(n) for n in waited], [int(n) for n in ran])
        for at, waited, ran in rows(using, sql.statistics.TIMES, _params(queues, since, step))
    ]


def _params(queues: Sequence[str], since: datetime, step: timedelta) -> dict[str, Any]:
    return {"step": step, "since": since, "queues": list(queues)}
