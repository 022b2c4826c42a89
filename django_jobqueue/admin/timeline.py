"""The life of a job as an SVG bar: when it was sent, how long it waited, its attempts, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Job
from ..redaction import redacted_text
from ..states import FINAL, RUNNING, JobState
from .wording import duration, moment

WIDTH, HEIGHT = 1000, 26
LEAST = 0.012  # of the width: shorter spans are widened to be visible
MOST_ATTEMPTS = 30


@dataclass(frozen=True)
class Span:
    """A period in the life of a job."""

    kind: str  # waited, failed, running, completed, ended
    label: str
    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return max(0.0, (self.end - self.begin).total_seconds())

    @property
    def text(self) -> str:
        return f"{self.label}: {duration(self.seconds)}, {moment(self.begin)} to {moment(self.end)}"


def spans_of(job: Job, now: datetime | None = None) -> list[Span]:
    """The spans from the send of the job until its end, or until now."""
    now = now or timezone.now()
    spans: list[Span] = []
    at = job.created_at
    for begin, end, label, kind in _attempts(job, now):
        begin, end = max(begin, at), max(begin, end, at)
        if begin > at:
            spans.append(Span("waited", _("waited") if not spans else _("waited for a retry"), at, begin))
        spans.append(Span(kind, label, begin, end))
        at = end
    rest = job.finalized_at if job.state in FINAL else now
    if job.state not in RUNNING and rest is not None and rest > at and (rest - at).total_seconds() > 0.0005:
        label = _("waiting") if job.state not in FINAL else _("waited until it ended")
        spans.append(Span("waited", label, at, rest))
    return spans


def _attempts(job: Job, now: datetime) -> list[tuple[datetime, datetime, str, str]]:
    attempts = []
    for attempt in job.attempts[-MOST_ATTEMPTS:]:
        begin, end = (parsed(attempt.get(name)) for name in ("started", "ended"))
        if begin and end:
            error = redacted_text(str(attempt.get("error_summary") or attempt.get("outcome")))
            label = _("attempt %(number)s, %(error)s") % {"number": attempt.get("attempt"), "error": error}
            attempts.append((begin, end, label, "failed"))
    if job.assigned_at is not None and not any(attempt.get("attempt") == job.attempt for attempt in job.attempts):
        label = _("attempt %s") % job.attempt
        if job.state in RUNNING:
            attempts.append((job.assigned_at, now, f"{label}, {_('running')}", "running"))
        elif job.finalized_at is not None:
            kind = "completed" if job.state == JobState.COMPLETED else "ended"
            attempts.append((job.assigned_at, job.finalized_at, f"{label}, {job.get_state_display()}", kind))
    return attempts


def parsed(text: object) -> datetime | None:
    """A time in the history of attempts; ``None`` if it is not valid."""
    try:
        return parse_datetime(text) if isinstance(text, str) else None
    except ValueError:
        return None


def drawn(spans: list[Span]) -> SafeString:
    """The bar. It is not to scale, because short spans are widened to be visible; its texts have the durations."""
    if not spans:
        return SafeString("")
    widths = _widths([span.seconds for span in spans])
    places = [sum(widths[:number]) for number in range(len(widths))]
    bars = format_html_join(
        "",
        '<rect class="jq-span-{}" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>',
        (
            (span.kind, f"{place:.1f}", f"{max(width - 2, 1):.1f}", HEIGHT, span.text)
            for span, place, width in zip(spans, places, widths, strict=True)
        ),
    )
    return format_html(
        '<svg class="jq-timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '<p class="jq-ends"><span>{}</span><span>{}</span></p>',
        WIDTH,
        HEIGHT,
        "; ".join(span.text for span in spans),
        bars,
        moment(spans[0].begin),
        moment(spans[-1].end),
    )


def _widths(seconds: list[float]) -> list[float]:
    total = sum(seconds) or 1.0
    least = min(LEAST, 1 / len(seconds))
    shares = [max(least, length / total) for length in seconds]
    return [share / sum(shares) * WIDTH for share in shares]
