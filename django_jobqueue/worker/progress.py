"""The progress of ``runjobs --drain``: a bar while it runs, and a line at the end about what was done and is left."""

from __future__ import annotations

import sys
import time
from collections import Counter
from datetime import datetime

from django.db import connections
from django.utils.timezone import localtime

from .. import handlers
from ..connection_names import name_process
from ..engine.backlog import MOST
from ..log_texts import duration, error_line
from ..services.inspect.backlog import WaitingFor, running, waiting, waiting_for
from ..services.maintain import fill_minutes
from . import sessions
from .options import WorkerOptions
from .sessions import DATABASE_ERRORS
from .tally import Tally

_WIDTH = 30
_EVERY_SECONDS = 0.2


class Progress:
    """A progress bar, drawn only on a terminal."""

    def __init__(self) -> None:
        self._shown_at = 0.0
        self._began = time.monotonic()

    @staticmethod
    def is_wanted(options: WorkerOptions) -> bool:
        return options.drain and options.verbosity > 0 and sys.stderr.isatty()

    def show(self, tally: Tally, total: int) -> None:
        if time.monotonic() - self._shown_at >= _EVERY_SECONDS:
            self._shown_at = time.monotonic()
            self._draw(tally, total)

    def _draw(self, tally: Tally, total: int) -> None:
        more = "+" if total >= MOST else ""
        total = max(total, tally.ended)  # jobs that were sent meanwhile are done, too
        share = tally.ended / max(1, total)
        rate = tally.ended / max(0.001, time.monotonic() - self._began)
        bar = "#" * int(share * _WIDTH)
        text = f"\r[{bar:<{_WIDTH}}] {tally.ended:,} of {total:,}{more}, {tally.failed:,} failed, {rate:,.0f}/s "
        sys.stderr.write(text)
        sys.stderr.flush()

    def close(self, tally: Tally, total: int) -> None:
        """Draw the last state."""
        self._draw(tally, total)
        sys.stderr.write("\n")


def count_total(options: WorkerOptions) -> int:
    """How many waiting jobs this worker can take, now or when the jobs ahead of them have ended."""
    found = waiting_for(options.served_queues(), tags=options.tags, using=options.using)
    return sum(each.number for each in found if _why(each) in (READY, BEHIND_RUNNING))


# --------------------------------------------------------------------------------------------------------- what is left

READY = "that can be fetched now"
BEHIND_RUNNING = "behind a running job of their key"
BEHIND_BLOCKED = "behind a blocked key"
BEHIND_DELAYED = "behind a job of their key that is not due"
NOT_DUE = "not due"
PAUSED = "in paused queues"
WITHOUT_TAGS = "without the tags of this worker"
WITHOUT_HANDLER = "without a handler in this code"
NOT_SERVED = "in queues this worker does not serve"
RUNNING = "running in another worker"
_REASONS = {
    "ready": READY,
    "until": NOT_DUE,
    "lane": BEHIND_RUNNING,
    "blocked": BEHIND_BLOCKED,
    "behind_delayed": BEHIND_DELAYED,
}


def _why(each: WaitingFor) -> str:
    """Why a worker leaves these jobs."""
    if each.is_paused:
        return PAUSED
    if not each.is_tagged:
        return WITHOUT_TAGS
    if handlers.find(each.queue, each.handler) is None:
        return WITHOUT_HANDLER
    return _REASONS[each.because]


def end_drain(options: WorkerOptions, tally: Tally, seconds: float) -> str:
    """Count the minutes of a drain for the statistics, and return what it did and what it left, as one line.

    A worker that keeps running counts the minutes in its maintenance; a drain is often over before that begins.
    """
    done = f"Jobs: {tally}, in {duration(seconds)}."
    name_process("runjobs", options.name)
    sessions.prepare(options.using)
    sessions.limit(statement=sessions.STATEMENT_SECONDS)
    try:
        fill_minutes(until_now=True, using=options.using)
        return f"{done} {what_is_left(options)}"
    except DATABASE_ERRORS as error:
        return f"{done} It is not known how many jobs are left: {error_line(error)}."
    finally:
        connections[options.using].close()


def what_is_left(options: WorkerOptions) -> str:
    """What a drain left, and why, as one sentence."""
    queues = set(options.served_queues())
    found = waiting_for(queues, tags=options.tags, using=options.using)
    left: Counter[str] = Counter()
    due_at: datetime | None = None
    for each in found:
        left[_why(each)] += each.number
        if _why(each) == NOT_DUE and each.due_at is not None:
            due_at = each.due_at if due_at is None else min(due_at, each.due_at)
    left[RUNNING] = sum(each.number for each in running(most=MOST, using=options.using) if each.queue in queues)
    left[NOT_SERVED] = sum(each.number for each in waiting(using=options.using) if each.queue not in queues)
    parts = [f"{_number(left[why])} {_with_time(why, due_at)}" for why in _ORDER if left[why]]
    if not parts:
        return "No jobs are left."
    total = sum(left.values())
    return f"{_number(total)} {'job is' if total == 1 else 'jobs are'} left: {', '.join(parts)}."


_ORDER = [*_REASONS.values(), RUNNING, PAUSED, WITHOUT_TAGS, WITHOUT_HANDLER, NOT_SERVED]


def _number(number: int) -> str:
    return f"{number:,}" if number < MOST else f"at least {number:,}"


def _with_time(why: str, due_at: datetime | None) -> str:
    if why != NOT_DUE or due_at is None:
        return why
    moment = localtime(due_at)
    is_today = moment.date() == localtime().date()
    return f"not due before {moment:%H:%M:%S}" if is_today else f"not due before {moment:%Y-%m-%d %H:%M}"
