"""The life of a job as a picture: it was sent, it waited, each attempt, how it ended. Drawn on the server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Job
from ..states import FINAL, RUNNING, JobState
from .wording import duration, moment

WIDTH, HEIGHT = 1000, 26
LEAST = 0.012  # of the width: what is shorter is still seen
MOST_ATTEMPTS = 30


@dataclass(frozen=True)
class Stage:
    """A stretch of a job's life."""

    kind: str  # waited, failed, running, completed, ended
    label: str
    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return max(0.0, (self.end - self.begin).total_seconds())

    @property
    def told(self) -> str:
        return f"{self.label}: {duration(self.seconds)}, {moment(self.begin)} to {moment(self.end)}"


def stages(job: Job, now: datetime | None = None) -> list[Stage]:
    """What it did from its send until now, or until it ended."""
    now = now or timezone.now()
    found: list[Stage] = []
    at = job.created_at
    for begin, end, label, kind in _attempts(job, now):
        begin, end = max(begin, at), max(begin, end, at)
        if begin > at:
            found.append(Stage("waited", _("waited") if not found else _("waited for a retry"), at, begin))
        found.append(Stage(kind, label, begin, end))
        at = end
    rest = job.finalized_at if job.state in FINAL else now
    if job.state not in RUNNING and rest is not None and rest > at and (rest - at).total_seconds() > 0.0005:
        label = _("waits") if job.state not in FINAL else _("until it ended")
        found.append(Stage("waited", label, at, rest))
    return found


def _attempts(job: Job, now: datetime) -> list[tuple[datetime, datetime, str, str]]:
    found = []
    for one in job.attempts[-MOST_ATTEMPTS:]:
        begin, end = (parsed(one.get(name)) for name in ("started", "ended"))
        if begin and end:
            label = _("attempt %(number)s, %(outcome)s") % {"number": one.get("attempt"), "outcome": one.get("outcome")}
            found.append((begin, end, label, "failed"))
    if job.assigned_at is not None and not any(one.get("attempt") == job.attempt for one in job.attempts):
        label = _("attempt %s") % job.attempt
        if job.state in RUNNING:
            found.append((job.assigned_at, now, f"{label}, {_('running')}", "running"))
        elif job.finalized_at is not None:
            kind = "completed" if job.state == JobState.COMPLETED else "ended"
            found.append((job.assigned_at, job.finalized_at, f"{label}, {job.get_state_display()}", kind))
    return found


def parsed(text: object) -> datetime | None:
    """A time as the history of attempts has it."""
    try:
        return parse_datetime(text) if isinstance(text, str) else None
    except ValueError:
        return None


def drawn(found: list[Stage]) -> SafeString:
    """One bar. It is not to scale, because short stretches are widened to be seen; its texts say how long each was."""
    if not found:
        return SafeString("")
    widths = _widths([stage.seconds for stage in found])
    places = [sum(widths[:number]) for number in range(len(widths))]
    bars = format_html_join(
        "",
        '<rect class="jq-stage-{}" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>',
        (
            (stage.kind, f"{place:.1f}", f"{max(width - 2, 1):.1f}", HEIGHT, stage.told)
            for stage, place, width in zip(found, places, widths, strict=True)
        ),
    )
    return format_html(
        '<svg class="jq-timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '<p class="jq-ends"><span>{}</span><span>{}</span></p>',
        WIDTH,
        HEIGHT,
        "; ".join(stage.told for stage in found),
        bars,
        moment(found[0].begin),
        moment(found[-1].end),
    )


def _widths(seconds: list[float]) -> list[float]:
    total = sum(seconds) or 1.0
    least = min(LEAST, 1 / len(seconds))
    shares = [max(least, one / total) for one in seconds]
    return [share / sum(shares) * WIDTH for share in shares]
