"""Telling operators of blocked keys, stopped queues and late schedules, and when these are over."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q

from ..alert_options import AlertBy, AlertOptions, alert_options
from ..alert_texts import AlertText, Notice
from ..deliveries import NotDelivered, deliver
from ..engine import sql
from ..engine.databases import database, execute, rows
from ..engine.transactions import in_transaction
from ..expressions import StatementTimestamp
from ..identifiers import uuid7
from ..log_texts import error_line
from ..models import Maintenance
from .inspect.lists import by_index
from .inspect.problems import Found, find_problems

logger = logging.getLogger("django_jobqueue.alerts")

EVERY_SECONDS = 900  # the shortest time between two alerts of a problem
STATEMENT_MS = 10_000


class Told(NamedTuple):
    """How many problems, and ends of problems, were told by a channel; with the error if they could not be."""

    channel: str
    number: int
    error: str = ""


def send_alerts(*, every: float = 0.0, using: str | None = None) -> list[Told]:
    """Find problems, and tell operators of those that are due, as ``JOBQUEUE["ALERTS"]`` says.

    Does nothing without that setting, or if the last check began less than ``every`` seconds ago in any process. Each
    message is claimed in the database before it is sent: other processes do not send it, and if this process ends
    before it has recorded the result, another one sends it again two minutes later. A message that cannot be delivered
    is sent again, at growing intervals. Raises ``ImproperlyConfigured`` for invalid options.
    """
    using, options = database(using), alert_options()
    if not options.channels or not _begin(using, every):
        return []
    found = by_index(
        partial(find_problems, after_seconds=options.after_seconds, using=using), statement_ms=STATEMENT_MS, using=using
    )
    in_transaction(using, partial(_record, found, options.channels, using))
    told = [_tell(channel, options, using) for channel in options.channels]
    return [each for each in told if each.number]


def _begin(using: str, every: float) -> bool:
    """Whether this process may check now: one does at a time."""
    execute(using, sql.maintain.ENSURE_ROW, [Maintenance.ONLY])
    now = StatementTimestamp()
    is_due = Q(alerts_at=None) | Q(alerts_at__lte=now - timedelta(seconds=every)) | Q(alerts_at__gt=now)
    return bool(Maintenance.objects.using(using).filter(is_due).update(alerts_at=now))


def _record(found: Found, channels: list[AlertBy], using: str) -> None:
    problems = found.problems
    params = {
        "kinds": [problem.kind.value for problem in problems],
        "names": [problem.name for problem in problems],
        "facts": [json.dumps(problem.facts) for problem in problems],
        "latest": [problem.latest_at for problem in problems],
        "channels": [channel.value for channel in channels],
        "unread": [kind.value for kind in found.unread],
    }
    execute(using, sql.alerts.RECORD, params)
    execute(using, sql.alerts.END, params)
    execute(using, sql.alerts.FORGET, params)


class _Claimed(NamedTuple):
    """A problem that this process is about to tell."""

    id: int
    kind: str
    name: str
    facts: str
    began_at: datetime
    seen_at: datetime
    over_at: datetime | None

    @property
    def notice(self) -> Notice:
        return Notice(self.kind, self.name, json.loads(self.facts), self.began_at, self.over_at)


def _tell(channel: AlertBy, options: AlertOptions, using: str) -> Told:
    holder = uuid7()
    claimed = claim(channel, holder, using=using)
    if not claimed:
        return Told(channel.value, 0)
    params: dict[str, Any] = {"holder": holder, "ids": [each.id for each in claimed]}
    try:
        deliver(AlertText([each.notice for each in claimed], options.url), channel, options)
    except NotDelivered as failure:
        text = error_line(str(failure))
        execute(using, sql.alerts.NOT_DELIVERED, {**params, "error": text, "every": EVERY_SECONDS})
        logger.warning(
            "alert could not be delivered: by %s, problems %d: %s; trying again, at growing intervals",
            channel.value,
            len(claimed),
            text,
            extra={"channel": channel.value, "problems": len(claimed), "error": text},
        )
        return Told(channel.value, len(claimed), text)
    execute(
        using, sql.alerts.DELIVERED, {**params, "seen": [None if each.over_at else each.seen_at for each in claimed]}
    )
    logger.info(
        "alert sent: by %s, problems %d",
        channel.value,
        len(claimed),
        extra={"channel": channel.value, "problems": len(claimed)},
    )
    return Told(channel.value, len(claimed))


def claim(channel: AlertBy, holder: UUID, *, using: str) -> list[_Claimed]:
    """Claim what is to be told by this channel now; rows that another process is claiming are skipped."""
    params = {"channel": channel.value, "holder": holder, "every": EVERY_SECONDS}
    return [_Claimed(*row) for row in in_transaction(using, partial(rows, using, sql.alerts.CLAIM, params))]
