"""Times, durations, numbers and states as text."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..counting import MANY, Count
from ..displayed import shown_summary
from ..models import Job
from ..states import JobState

UNKNOWN = "–"  # noqa: RUF001  # a dash
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(value: timedelta | float | None, *, units: int = 2) -> str:
    """A duration in at most two units: ``3 d 4 h``, ``1 min 20 s``, ``1.25 s``, ``40 ms``."""
    if value is None:
        return ""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    for place, (size, unit) in enumerate(UNITS):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            small, small_unit = UNITS[place + 1] if place + 1 < len(UNITS) else (1, "")
            more = units > 1 and small_unit and rest // small
            return f"{whole} {unit}" + (f" {rest // small} {small_unit}" if more else "")
    raise AssertionError("unreachable")


def moment(value: datetime | None) -> str:
    """A time to the second, in the current time zone."""
    return "" if value is None else date_format(timezone.localtime(value), "Y-m-d H:i:s")


def time_tag(value: datetime | None, *, ago: bool = False) -> SafeString | str:
    """A time as an HTML ``<time>`` element; with ``ago``, its text is how long ago it was."""
    if value is None:
        return ""
    text = _("%s ago") % duration(timezone.now() - value, units=1) if ago else _brief(value)
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), moment(value), text)


def _brief(value: datetime) -> str:
    """A time without its date if that is today."""
    local = timezone.localtime(value)
    return date_format(local, "H:i:s" if local.date() == timezone.localdate() else "Y-m-d H:i")


def state_badge(state: str) -> SafeString:
    known = state if state in JobState.values else "unknown"
    return format_html('<span class="jq-state jq-state-{}">{}</span>', known, _label(state))


def _label(state: str) -> str:
    return str(JobState(state).label) if state in JobState.values else state


def number(value: int) -> str:
    """A number with separators of thousands."""
    return f"{value:,}"


def many(counted: int, most: int | None = None) -> str:
    """A count that stopped at ``most``, or at ``MANY``."""
    most = MANY if most is None else most
    return f"{number(most)}+" if counted > most else number(counted)


def at_least(count: Count) -> str:
    """A count; with a plus sign if there may be more; empty if only none was found among some."""
    if count.among is None:
        return many(count.number)
    return f"{number(min(count.number, MANY))}+" if count.number else ""


def short_number(value: float) -> str:
    """``0.25``, ``7.5``, ``950``, ``1,500``: a number in three digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def one_line(job: Job, length: int = 300) -> str:
    """Why a job failed, in one line; its state, if its error is empty."""
    return error_line(job, length) or job.get_state_display()


def error_line(job: Job, length: int = 120) -> str:
    """The error of a job in one line of ``length`` characters."""
    text = shown_summary(job)
    return text if len(text) <= length else text[: length - 1] + "…"


def ran_for(job: Job) -> timedelta | None:
    """How long the latest attempt took, or has taken so far."""
    if job.assigned_at is None:
        return None
    if job.state in (JobState.ACTIVE, JobState.CANCELLING):
        return timezone.now() - job.assigned_at
    ended = job.finalized_at if job.state == JobState.COMPLETED else job.attempt_finished_at
    return ended - job.assigned_at if ended is not None and ended >= job.assigned_at else None
