"""SVG charts of the statistics per queue and minute; each has a table with the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..models import Maintenance
from ..services.inspect import minutes
from ..statistics import percentile
from .wording import duration

WIDTH, HEIGHT = 460, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 22
MINUTE = timedelta(minutes=1)
LATE = timedelta(minutes=5)


@dataclass(frozen=True)
class Period:
    name: str
    label: object
    span: timedelta
    step: timedelta
    clock: str  # the format of times on the axis


PERIODS = {
    period.name: period
    for period in (
        Period("1h", _("1 hour"), timedelta(hours=1), timedelta(minutes=1), "H:i"),
        Period("24h", _("24 hours"), timedelta(hours=24), timedelta(minutes=20), "H:i"),
        Period("7d", _("7 days"), timedelta(days=7), timedelta(hours=3), "D H:i"),
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


def steps_of(period: Period, queues: Sequence[str], *, using: str, now: datetime | None = None) -> list[Step]:
    """Every step of the period up to the last counted minute, including empty steps."""
    now = min(now or timezone.now(), _counted_until(using))
    since = _floor(now - period.span, period.step)
    steps: dict[datetime, Step] = {}
    number = int((now - since) / period.step) + 1
    for place in range(number):
        at = since + place * period.step
        if at + MINUTE <= now:  # the current minute is not counted yet
            steps[at] = Step(at, minutes=min(period.step, now - at) / MINUTE)
    for sums in minutes.sums(queues, since=since, step=period.step, using=using):
        if sums.at in steps:
            step = steps[sums.at]
            step.sent, step.completed, step.failed, step.retried = sums.sent, sums.completed, sums.failed, sums.retried
            step.waiting, step.blocked = sums.waiting, sums.blocked
    for times in minutes.times(queues, since=since, step=period.step, using=using):
        if times.at in steps:
            steps[times.at].waited, steps[times.at].ran = times.waited, times.ran
    return list(steps.values())


def _counted_until(using: str) -> datetime:
    """Until when maintenance has counted; now, if it never has or is late."""
    counted = Maintenance.objects.using(using).values_list("counted_until", flat=True).first()
    now = timezone.now()
    return counted if counted is not None and now - counted < LATE else now


def _floor(moment: datetime, step: timedelta) -> datetime:
    seconds = step.total_seconds()
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, tz=moment.tzinfo)


# ------------------------------------------------------------------------------------------------------------ drawing


@dataclass(frozen=True)
class Series:
    name: object
    kind: str  # a class of the style sheet
    values: list[float | None]


@dataclass(frozen=True)
class Chart:
    title: object
    series: list[Series]
    times: list[datetime]
    period: Period
    text: Callable[[float], str]

    @property
    def top(self) -> float:
        return nice(max((value or 0.0 for series in self.series for value in series.values), default=0.0))

    @property
    def svg(self) -> SafeString:
        """Axes with three lines and four times, and a line for each series, with gaps where values are missing."""
        top = self.top
        lines = format_html_join(
            "",
            '<line class="jq-grid" x1="{}" x2="{}" y1="{}" y2="{}"></line>'
            '<text class="jq-axis" x="{}" y="{}" text-anchor="end">{}</text>',
            (
                (LEFT, WIDTH - RIGHT, y := self._y(top * share, top), y, LEFT - 5, y + 4, self.text(top * share))
                for share in (0.0, 0.5, 1.0)
            ),
        )
        last = len(self.times) - 1
        marks = [round(last * share) for share in (0.0, 1 / 3, 2 / 3, 1.0)] if last > 0 else []
        anchors = ("start", "middle", "middle", "end")
        times = format_html_join(
            "",
            '<text class="jq-axis" x="{}" y="{}" text-anchor="{}">{}</text>',
            (
                (f"{self._x(mark):.1f}", HEIGHT - 6, anchor, self._time(self.times[mark]))
                for mark, anchor in zip(marks, anchors, strict=False)
            ),
        )
        paths = format_html_join(
            "",
            '<path class="jq-line jq-{}" d="{}"></path>',
            ((series.kind, self._path(series.values)) for series in self.series),
        )
        return format_html(
            '<svg class="jq-chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>',
            WIDTH,
            HEIGHT,
            f"{self.title}: {self.summary}",
            lines,
            times,
            paths,
        )

    @property
    def summary(self) -> str:
        """The latest known value of each series."""
        return ", ".join(f"{series.name} {self.latest(series)}" for series in self.series)

    def latest(self, series: Series) -> str:
        known = [value for value in series.values if value is not None]
        return self.text(known[-1]) if known else "–"  # noqa: RUF001

    @property
    def table(self) -> list[tuple[str, list[str]]]:
        """The numbers of the chart, for screen readers too."""
        return [
            (
                self._time(at),
                ["–" if (value := series.values[place]) is None else self.text(value) for series in self.series],  # noqa: RUF001
            )
            for place, at in enumerate(self.times)
        ]

    def _x(self, place: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * place / max(1, len(self.times) - 1)

    def _y(self, value: float, top: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top, 1)

    def _path(self, values: list[float | None]) -> str:
        parts, draws, top = [], False, self.top
        for place, value in enumerate(values):
            if value is None:
                draws = False
                continue
            parts.append(f"{'L' if draws else 'M'}{self._x(place):.1f} {self._y(value, top)}")
            if not draws:
                parts.append("h0.1")  # so that a single point is visible
            draws = True
        return " ".join(parts)

    def _time(self, at: datetime) -> str:
        return date_format(timezone.localtime(at), self.period.clock)


def nice(value: float) -> float:
    """A round number that is not less than ``value``, for the top of an axis."""
    if value <= 0:
        return 1.0
    size = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 1.0
    while size > value:
        size /= 10
    for factor in (1, 2, 2.5, 4, 5, 10):
        if size * factor >= value:
            return size * factor
    return size * 10


def count_text(value: float) -> str:
    """``950``, ``1.5k``, ``2M``."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def charts(steps: list[Step], period: Period) -> list[Chart]:
    """Throughput, depth, waiting times and run times."""
    times = [step.at for step in steps]

    def rate(name: str) -> list[float | None]:
        return [getattr(step, name) / step.minutes for step in steps]

    def share(name: str, part: float) -> list[float | None]:
        return [percentile(getattr(step, name), part) for step in steps]

    return [
        Chart(
            _("Jobs per minute"),
            [
                Series(_("sent"), "sent", rate("sent")),
                Series(_("completed"), "completed", rate("completed")),
                Series(_("failed"), "failed", rate("failed")),
            ],
            times,
            period,
            count_text,
        ),
        Chart(
            _("Waiting jobs and blocked keys"),
            [
                Series(_("waiting"), "waiting", [_number(step.waiting) for step in steps]),
                Series(_("blocked keys"), "failed", [_number(step.blocked) for step in steps]),
            ],
            times,
            period,
            count_text,
        ),
        Chart(
            _("Waiting time before the first attempt"),
            [Series("p50", "sent", share("waited", 0.5)), Series("p95", "waiting", share("waited", 0.95))],
            times,
            period,
            duration,
        ),
        Chart(
            _("Duration of attempts"),
            [Series("p50", "sent", share("ran", 0.5)), Series("p95", "waiting", share("ran", 0.95))],
            times,
            period,
            duration,
        ),
    ]


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))
