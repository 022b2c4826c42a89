"""The subcommand ``alerts``: which problems there are, what operators were told of them, and a test message."""

from __future__ import annotations

from typing import Any

from django.core.management.color import Style
from django.utils import timezone

from ..alert_options import alert_options
from ..alert_texts import Notice, trial_message
from ..deliveries import NotDelivered, deliver
from ..models import Alert
from .answers import Answer, Code, table

SHOWN = ("channel", "problem", "since", "over since", "told at", "error")
NONE = "JOBQUEUE['ALERTS'] is not set, so operators are not told of problems."


def alerts(options: dict[str, Any], style: Style, using: str) -> Answer:
    """The problems that the last check found, and what was told of them; with ``--test``, send a test message."""
    if options["test"]:
        return _test(style, using)
    rows = [_row(alert) for alert in Alert.objects.using(using).order_by("channel", "-began_at")[: options["limit"]]]
    if not rows:
        return Answer({"alerts": []}, "The last check found no problem." if alert_options().channels else NONE)
    text = table(SHOWN, [[row[name] for name in SHOWN] for row in rows], style)
    lasting = sum(row["over since"] is None for row in rows)
    return Answer({"alerts": rows}, text, Code.FOUND if lasting else Code.FINE)


def _row(alert: Alert) -> dict[str, Any]:
    notice = Notice(alert.kind, alert.name, alert.facts, alert.began_at)
    return {
        "channel": alert.channel,
        "kind": alert.kind,
        "name": alert.name,
        "problem": notice.sentence,
        "since": alert.began_at,
        "over since": alert.over_at,
        "told at": alert.sent_at,
        "error": alert.error,
    }


def _test(style: Style, using: str) -> Answer:
    """Send a message that says it is a test by each channel, and say what became of it."""
    given = alert_options()
    if not given.channels:
        return Answer({"sent": [], "failed": {}}, NONE, Code.FOUND)
    failed: dict[str, str] = {}
    for channel in given.channels:
        try:
            deliver(trial_message(given.url, timezone.now()), channel, given)
        except NotDelivered as error:
            failed[channel.value] = str(error)
    sent = [channel.value for channel in given.channels if channel.value not in failed]
    lines = [f"{style.SUCCESS('sent')}  {name}" for name in sent]
    lines += [f"{style.ERROR('not sent')}  {name}: {text}" for name, text in failed.items()]
    return Answer({"sent": sent, "failed": failed}, "\n".join(lines), Code.FOUND if failed else Code.FINE)
