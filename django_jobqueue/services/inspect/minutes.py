"""What happened in queues over time, from the statistics of minutes and of spans of ten minutes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from ...engine import sql
from ...engine.databases import rows
from ...statistics import SPAN


class StepSums(NamedTuple):
    """What happened in one step of time, the most waiting jobs and blocked keys in it, and histograms of durations."""

    at: datetime
    sent: int
    started: int
    completed: int
    failed: int
    retried: int
    waiting: int | None
    blocked: int | None
    waited: list[int]
    ran: list[int]


def steps(queue: str | None, *, since: datetime, step: timedelta, using: str) -> list[StepSums]:
    """What happened in this queue, or in all together, in steps of that length; empty steps are left out.

    It is read by one statement. Steps that consist of whole spans are read from spans: a month of them has a tenth of
    the rows for one queue, and far fewer for all queues.
    """
    params = {"step": step, "since": since, "queue": queue}
    if step % SPAN:
        statement = sql.statistics.STEPS_OF_MINUTES
    else:
        whose = sql.statistics.OF_ALL_QUEUES if queue is None else sql.statistics.OF_QUEUE
        statement = sql.statistics.STEPS_OF_SPANS.format(whose=whose)
    return [
        StepSums(at, int(sent), int(started), int(completed), int(failed), int(retried), waiting, blocked, waited, ran)
        for at, sent, started, completed, failed, retried, waiting, blocked, waited, ran in rows(
            using, statement, params
        )
    ]
