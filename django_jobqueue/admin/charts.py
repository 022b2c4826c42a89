"""Charts of the statistics: four for the first page, drawn in the browser by uPlot, and the same numbers as a table.

Without JavaScript each chart is a still picture. A click on a chart opens the jobs of that step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..services.inspect import minutes
from ..statistics import percentile
from .wording import UNKNOWN, duration, short_number

MINUTE = timedelta(minutes=1)
LATE = timedelta(minutes=5)
FROM, TO = "BEGIN-OF-STEP", "END-OF-STEP"  # stand for the ends of a step in the links of a chart


@dataclass(frozen=True)
class Period:
    name: str
    label: Any
    span: timedelta
    step: timedelta  # longer ones are whole spans of the statistics
    clock: str  # the format of times

    def begin(self, now: datetime) -> datetime:
        """The beginning of the step in which the period begins."""
        seconds = self.step.total_seconds()
        return datetime.fromtimestamp((now - self.span).timestamp() // seconds * seconds, tz=now.tzinfo)


PERIODS = {
    period.name: period
    for period in (
        Period("1h", _("1 hour"), timedelta(hours=1), timedelta(minutes=1), "H:i"),
        Period("6h", _("6 hours"), timedelta(hours=6), timedelta(minutes=10), "H:i"),
        Period("24h", _("24 hours"), timedelta(hours=24), timedelta(minutes=20), "H:i"),
        Period("7d", _("7 days"), timedelta(days=7), timedelta(hours=2), "D H:i"),
        Period("30d", _("30 days"), timedelta(days=30), timedelta(hours=6), "M j H:i"),
    )
}


@dataclass(slots=True)
class Step:
    """What happened in one step of a period."""

    at: datetime
    sent: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    waiting: int | None = None
    blocked: int | None = None
    waited: Sequence[int] = ()
    ran: Sequence[int] = ()
    minutes: float = 1.0  # its length so far


def steps_of(period: Period, queue: str | None, *, counted_until: datetime | None, using: str) -> list[Step]:
    """Every step of the period up to the last counted minute, including empty steps; of one queue, or of all.

    If maintenance has never counted or is late, they end now.
    """
    now = timezone.now()
    since = period.begin(now)
    if counted_until is not None and now - counted_until < LATE:
        now = min(now, counted_until)
    steps: dict[datetime, Step] = {}
    number = int((now - since) / period.step) + 1
    for place in range(number):
        at = since + place * period.step
        if at + MINUTE <= now:  # the current minute is not counted yet
            steps[at] = Step(at, minutes=min(period.step, now - at) / MINUTE)
    for sums in minutes.steps(queue, since=since, step=period.step, using=using):
        if sums.at in steps:
            step = steps[sums.at]
            step.sent, step.completed, step.failed, step.retried = sums.sent, sums.completed, sums.failed, sums.retried
            step.waiting, step.blocked = sums.waiting, sums.blocked
            step.waited, step.ran = sums.waited, sums.ran
    return list(steps.values())


# ---------------------------------------------------------------------------------------------------------- the charts


@dataclass(frozen=True)
class Series:
    """One line of a chart. ``jobs`` are the filters of the list that a click on it opens."""

    name: Any
    kind: str  # a class of the style sheet
    unit: str
    values: list[float | None]
    jobs: dict[str, str]
    time: str  # the column by which its jobs are in a step
    has_own_axis: bool = False  # on the right

    def text(self, value: float | None) -> str:
        if value is None:
            return UNKNOWN
        return duration(value) if self.unit == "s" else f"{short_number(value)}{self.unit}"

    @property
    def latest(self) -> str:
        return self.text(next((value for value in reversed(self.values) if value is not None), None))

    @property
    def highest(self) -> str:
        return self.text(max((value for value in self.values if value is not None), default=None))

    def query(self, begin: str, end: str) -> str:
        return urlencode({**self.jobs, f"{self.time}__range__gte": begin, f"{self.time}__range__lte": end})


@dataclass(frozen=True)
class Chart:
    name: str
    title: Any
    series: list[Series]
    times: list[datetime]
    period: Period

    @property
    def summary(self) -> str:
        """The latest and the highest value of each series, for screen readers."""
        return "; ".join(
            _("%(name)s: now %(latest)s, at most %(highest)s")
            % {"name": each.name, "latest": each.latest, "highest": each.highest}
            for each in self.series
        )

    @property
    def picture(self) -> SafeString:
        """The lines without axes; each axis has its own scale."""
        tops = {False: 0.0, True: 0.0}
        for each in self.series:
            tops[each.has_own_axis] = max(tops[each.has_own_axis], *(value or 0.0 for value in each.values), 0.0)
        lines = ((each.kind, _path(each.values, tops[each.has_own_axis])) for each in self.series)
        return format_html(
            '<svg class="jq-chart" viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">{}</svg>',
            format_html_join("", '<path class="jq-line jq-{}" d="{}"></path>', lines),
        )

    def as_json(self, jobs_url: str) -> str:
        """What the browser draws."""
        series = [
            {
                "name": str(each.name),
                "kind": each.kind,
                "unit": each.unit,
                "values": [None if value is None else round(value, 4) for value in each.values],
                "right": each.has_own_axis,
                "link": f"{jobs_url}?{each.query(FROM, TO)}",
            }
            for each in self.series
        ]
        return _compact({"series": series})


def steps_as_json(steps: Sequence[Step], period: Period) -> str:
    """What all charts of a page have in common."""
    bounds = [bounds_of(step.at, period.step) for step in steps]
    return _compact(
        {
            "times": [int(step.at.timestamp()) for step in steps],
            "begins": [begin for begin, _ in bounds],
            "ends": [end for _, end in bounds],
            "step": period.step.total_seconds(),
            "zone": timezone.get_current_timezone_name(),
        }
    )


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def spark(values: Iterable[float | None]) -> SafeString:
    """A small line without axes, beside a figure that says the number."""
    known = list(values)
    path = _path(known, max((value or 0.0 for value in known), default=0.0))
    return format_html(
        '<svg class="jq-spark" viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="jq-line" d="{}"></path></svg>',
        path,
    )


def _path(values: Sequence[float | None], top: float) -> str:
    """The line through these values, with gaps where they are not known."""
    parts, draws = [], False
    for place, value in enumerate(values):
        if value is None:
            draws = False
            continue
        x, y = 100 * place / max(1, len(values) - 1), 29 - 28 * value / (top or 1.0)
        parts.append(f"{'L' if draws else 'M'}{x:.1f} {y:.1f}")
        if not draws:
            parts.append("h0.1")  # so that a single point is visible
        draws = True
    return " ".join(parts)


def charts(steps: list[Step], period: Period, queue: str = "") -> list[Chart]:
    """Throughput, depth, waiting times and run times."""
    times = [step.at for step in steps]
    of_queue = {"queue": queue} if queue else {}
    dead = {**of_queue, "state": "dead"}

    def rate(name: str) -> list[float | None]:
        return [getattr(step, name) / step.minutes for step in steps]

    def number(name: str) -> list[float | None]:
        return [None if (value := getattr(step, name)) is None else float(value) for step in steps]

    def share(name: str, part: float) -> list[float | None]:
        return [percentile(getattr(step, name), part) for step in steps]

    completed = {**of_queue, "state": "completed"}
    ended = {**of_queue, "state": "finished"}
    return [
        Chart(
            "throughput",
            _("Jobs per minute"),
            [
                Series(_("sent"), "sent", "/min", rate("sent"), of_queue, "created_at"),
                Series(_("completed"), "completed", "/min", rate("completed"), completed, "finalized_at"),
                Series(_("failed"), "failed", "/min", rate("failed"), dead, "finalized_at", has_own_axis=True),
            ],
            times,
            period,
        ),
        Chart(
            "depth",
            _("Waiting jobs and blocked keys"),
            [
                Series(_("waiting"), "waiting", "", number("waiting"), of_queue, "created_at"),
                Series(_("blocked keys"), "failed", "", number("blocked"), dead, "finalized_at", has_own_axis=True),
            ],
            times,
            period,
        ),
        Chart(
            "waited",
            _("Waiting time before the first attempt"),
            [
                Series("p50", "sent", "s", share("waited", 0.5), of_queue, "started_at"),
                Series("p95", "waiting", "s", share("waited", 0.95), of_queue, "started_at"),
            ],
            times,
            period,
        ),
        Chart(
            "ran",
            _("Duration of attempts"),
            [
                Series("p50", "sent", "s", share("ran", 0.5), ended, "finalized_at"),
                Series("p95", "waiting", "s", share("ran", 0.95), ended, "finalized_at"),
            ],
            times,
            period,
        ),
    ]


@dataclass(frozen=True)
class Cell:
    text: str
    query: str  # of the list of its jobs; empty if there are none


def table(charts: list[Chart]) -> list[tuple[str, list[Cell]]]:
    """The numbers of these charts: a row for each step, the latest first."""
    rows = []
    period, times = charts[0].period, charts[0].times
    for place in reversed(range(len(times))):
        begin, end = bounds_of(times[place], period.step)
        cells = [
            Cell(each.text(each.values[place]), each.query(begin, end) if each.values[place] else "")
            for chart in charts
            for each in chart.series
        ]
        rows.append((date_format(timezone.localtime(times[place]), period.clock), cells))
    return rows


def bounds_of(begin: datetime, span: timedelta) -> tuple[str, str]:
    """The ends of a step as the list of jobs has them in its filters: local times, and both included."""
    return local(begin), local(begin + span - timedelta(milliseconds=1))


def local(moment: datetime) -> str:
    """A time as a filter of the list of jobs, to the millisecond."""
    return timezone.localtime(moment).replace(tzinfo=None).isoformat(timespec="milliseconds")
