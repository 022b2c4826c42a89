"""Counting what happened in each minute; the counts are kept after the jobs are deleted."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import zip_longest
from typing import Any

from django.db import DatabaseError, connections, transaction

from ..log_texts import error_line, error_text
from ..models import Maintenance, Queue, QueueMinute, QueueTotal
from ..statistics import CATCH_UP, COUNTERS, HISTOGRAMS, merged
from . import sql
from .backlog import total_waiting
from .databases import execute, rows
from .transactions import in_transaction, joins

AGAIN = timedelta(minutes=2)  # minutes that are counted again, because a transaction may commit late
_MINUTE = timedelta(minutes=1)
_LOCK = 0x6A6F62_6D696E  # "jobmin": only one process counts at a time

logger = logging.getLogger("django_jobqueue.statistics")


@dataclass(slots=True)
class _Counts:
    """The counts of one queue and minute."""

    numbers: Counter[str] = field(default_factory=Counter)
    histograms: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in HISTOGRAMS})
    waiting: int | None = None
    blocked_keys: int | None = None

    def add(self, name: str, number: int) -> None:
        self.numbers[name] += number

    def put(self, name: str, bucket: int, number: int) -> None:
        histogram = self.histograms[name]
        histogram += [0] * (bucket + 1 - len(histogram))
        histogram[bucket] += number


_Key = tuple[str, datetime]  # a queue and a minute


def fill(using: str, *, until_now: bool = False) -> int:
    """Count every complete minute that is not counted yet; return the number of minutes.

    With ``until_now`` also count the current minute, which is counted again when it is complete.
    """
    if not joins(connections[using]):
        _summarize(using)
    return in_transaction(using, partial(_fill, using, until_now))


def forget(days: int, limit: int, using: str) -> int:
    """Delete up to ``limit`` minutes that are older than ``days``, and as many spans; return the number of minutes."""

    def both() -> int:
        params = {"days": days, "most": limit}
        execute(using, sql.statistics.FORGET_SPANS, params)
        return execute(using, sql.statistics.FORGET, params)

    return in_transaction(using, both)


def _summarize(using: str) -> None:
    """Summarize new ranges of the BRIN index: a range without a summary is read completely, and autovacuum may be late.

    A table that another session is vacuuming is skipped.
    """
    for (index,) in rows(using, sql.statistics.RANGES):
        try:
            with transaction.atomic(using=using):
                execute(using, sql.statistics.WAIT_BRIEFLY)
                rows(using, sql.statistics.SUMMARIZE, [index])
        except DatabaseError as error:
            logger.debug(
                "index ranges could not be summarized: %s: %s",
                index,
                error_line(error),
                extra={"index": index, "error": error_text(error)},
            )


def _fill(using: str, until_now: bool) -> int:
    if not rows(using, sql.statistics.TRY_LOCK, [_LOCK])[0][0]:
        return 0
    until = rows(using, sql.statistics.THIS_MINUTE)[0][0]
    counted_until = Maintenance.objects.using(using).values_list("counted_until", flat=True).first()
    if counted_until == until and not until_now:
        return 0
    first = until - CATCH_UP
    if counted_until is not None and first < counted_until <= until:  # it lies in the future if the clock was put back
        first = counted_until
    last = until if until_now else until - _MINUTE
    counts = _count(using, max(first - AGAIN, until - CATCH_UP), last + _MINUTE)
    _look_around(using, counts, last)
    _store(using, counts)
    Maintenance.objects.using(using).update_or_create(pk=Maintenance.ONLY, defaults={"counted_until": until})
    return int((until - first) / _MINUTE)


def _count(using: str, since: datetime, until: datetime) -> dict[_Key, _Counts]:
    counts: dict[_Key, _Counts] = defaultdict(_Counts)
    span = {"since": since, "until": until}
    for queue, minute, number in rows(using, sql.statistics.SENT, span):
        counts[queue, minute].add("sent", number)
    for queue, minute, bucket, number in rows(using, sql.statistics.STARTED, span):
        counts[queue, minute].add("started", number)
        counts[queue, minute].put("waited", bucket, number)
    for queue, minute, is_completed, bucket, number in rows(using, sql.statistics.ENDED, span):
        counts[queue, minute].add("completed" if is_completed else "failed", number)
        if bucket is not None:
            counts[queue, minute].put("ran", bucket, number)
    for queue, minute, number in rows(using, sql.statistics.RETRIED, span):
        counts[queue, minute].add("retried", number)
    return counts


def _look_around(using: str, counts: dict[_Key, _Counts], minute: datetime) -> None:
    """Count the jobs that wait or block now, for the end of the last minute; for earlier minutes this is unknown."""
    waiting, blocked = total_waiting(using=using), dict(rows(using, sql.statistics.BLOCKED))
    for queue in {*waiting, *blocked, *(name for name, when in counts if when == minute)}:
        counts[queue, minute].waiting = waiting[queue]
        counts[queue, minute].blocked_keys = blocked.get(queue, 0)


def _store(using: str, counts: Mapping[_Key, _Counts]) -> None:
    """Write the minutes, and add their new counts to the totals.

    The counts of a minute only grow: jobs that were deleted or retried since are still counted.
    """
    existing = set(Queue.objects.using(using).values_list("pk", flat=True))
    known = {
        (row.queue_id, row.minute): row
        for row in QueueMinute.objects.using(using).filter(
            queue__in={queue for queue, _ in counts}, minute__in={minute for _, minute in counts}
        )
    }
    written: list[QueueMinute] = []
    added: dict[str, _Counts] = defaultdict(_Counts)
    for (queue, minute), count in counts.items():
        if queue in existing:
            before = known.get((queue, minute)) or QueueMinute(queue_id=queue, minute=minute, **_ZERO)
            written.append(_grown(before, count, added[queue]))
    QueueMinute.objects.using(using).bulk_create(
        written,
        update_conflicts=True,
        unique_fields=["queue", "minute"],
        update_fields=[*COUNTERS, *HISTOGRAMS, "waiting", "blocked_keys"],
    )
    _add_to_totals(using, added)
    if written:
        minutes = [row.minute for row in written]
        execute(using, sql.statistics.SUM_UP, {"first": min(minutes), "last": max(minutes)})


_ZERO: dict[str, Any] = dict.fromkeys(COUNTERS, 0)


def _grown(before: QueueMinute, count: _Counts, added: _Counts) -> QueueMinute:
    after = QueueMinute(queue_id=before.queue_id, minute=before.minute)
    for name in COUNTERS:
        had = getattr(before, name)
        setattr(after, name, max(had, count.numbers[name]))
        added.add(name, getattr(after, name) - had)
    for name in HISTOGRAMS:
        pairs = list(zip_longest(getattr(before, name), count.histograms[name], fillvalue=0))
        setattr(after, name, [max(pair) for pair in pairs])
        added.histograms[name] = merged(added.histograms[name], [max(pair) - pair[0] for pair in pairs])
    after.waiting = before.waiting if count.waiting is None else count.waiting
    after.blocked_keys = before.blocked_keys if count.blocked_keys is None else count.blocked_keys
    return after


def _add_to_totals(using: str, added: Mapping[str, _Counts]) -> None:
    totals = {total.queue_id: total for total in QueueTotal.objects.using(using).filter(queue__in=list(added))}
    for queue, count in added.items():
        total = totals.setdefault(queue, QueueTotal(queue_id=queue, **_ZERO))
        for name in COUNTERS:
            setattr(total, name, getattr(total, name) + count.numbers[name])
        for name in HISTOGRAMS:
            setattr(total, name, merged(getattr(total, name), count.histograms[name]))
    QueueTotal.objects.using(using).bulk_create(
        totals.values(), update_conflicts=True, unique_fields=["queue"], update_fields=[*COUNTERS, *HISTOGRAMS]
    )
