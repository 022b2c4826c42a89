"""The report of the analysis: one self-contained HTML page, without the data of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analyzing import Analysis

WIDTH, HEIGHT, LEFT, BOTTOM = 860, 220, 56, 24
COLOURS = 6  # queues in a chart; the page says how many smaller ones there are
SHOWN = 200  # rows of a table

STYLE = """
:root { color-scheme: light dark; --text: #1c2330; --soft: #5b6573; --line: #d9dee6; --back: #fff; --panel: #f6f8fa;
  --c0: #2563eb; --c1: #d9480f; --c2: #2b8a3e; --c3: #9c36b5; --c4: #0b7285; --c5: #868e96; --bad: #c92a2a; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --soft: #9aa4b2; --line: #343b46; --back: #14181f;
  --panel: #1c222b; --c0: #6ea8fe; --c1: #ff922b; --c2: #69db7c; --c3: #e599f7; --c4: #66d9e8; --c5: #adb5bd;
  --bad: #ff8787; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 16px 64px; max-width: 940px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 40px 0 8px; } p { color: var(--soft); margin: 4px 0; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0; }
.card { flex: 1 1 130px; background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 14px; }
.card b { display: block; font-size: 22px; } .card span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } .n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.legend span { margin-right: 14px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
"""


def html(analysis: Analysis) -> str:
    """The whole page as text."""
    tables, unit = analysis.tables, analysis.unit
    parts = [
        f"<h1>Jobs until {analysis.at:%Y-%m-%d %H:%M} UTC</h1>",
        f"<p>{escape(analysis.sentence())} Times are UTC, durations are seconds.</p>",
        _cards(analysis),
    ]
    if not analysis.jobs:
        parts.append("<p>There are no jobs yet. Once some have run, their figures are here.</p>")
        return _page(parts)
    newest_first = sorted(tables["days"], key=lambda row: row["time"], reverse=True)
    parts += [
        _section(f"Ended per {unit}", _lines(analysis.drawn, "completed", "failed")),
        _section(f"Waiting at the end of each {unit}", _lines(tables["backlog"], "waiting")),
        _section(
            f"Waited before the first attempt, 95th percentile per {unit}", _lines(analysis.drawn, "waited_p95")
        ),
        _section("Queues and handlers", _table(tables["handlers"])),
        _section("Per day", _table(newest_first)),
        _section("Failures by fingerprint", _table(tables["failures"], "Nothing failed for good.")),
        _section("Blocked keys, and how they were released", _table(tables["blocked"], "No key was blocked.")),
        _section("Busiest keys", _table(tables["busiest_keys"], "No job had a key.")),
        _section("Slowest keys", _table(tables["slowest_keys"], "No job with a key has completed.")),
    ]  # fmt: skip
    return _page(parts)


def _page(parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Jobs</title><style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{body}"


def _cards(analysis: Analysis) -> str:
    handlers = analysis.tables.get("handlers", [])
    failed = sum(row["failed"] for row in handlers)
    ended = failed + sum(row["completed"] for row in handlers)
    facts = {
        "jobs": f"{analysis.jobs:,}",
        "completed": f"{ended - failed:,}",
        "failed for good": f"{failed:,}",
        "failure rate": f"{failed / ended:.2%}" if ended else "none",
        "retries": f"{sum(row['retries'] for row in handlers):,}",
        "queues": f"{len({row['queue'] for row in handlers}):,}",
    }
    cards = (f'<div class="card"><b>{escape(value)}</b><span>{name}</span></div>' for name, value in facts.items())
    return f'<div class="cards">{"".join(cards)}</div>'


# ------------------------------------------------------------------------------------------------------------ tables


def _table(rows: Sequence[dict[str, Any]], empty: str = "Nothing.") -> str:
    if not rows:
        return f"<p>{escape(empty)}</p>"
    names = list(rows[0])
    numeric = {name for name in names if all(isinstance(row[name], int | float | None) for row in rows)}
    head = "".join(f"<th{_right(name in numeric)}>{escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td{_right(name in numeric)}>{_cell(row[name], name)}</td>" for name in names) + "</tr>"
        for row in rows[:SHOWN]
    )
    more = f"<p>and {len(rows) - SHOWN:,} more</p>" if len(rows) > SHOWN else ""
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>{more}'


def _right(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _cell(value: Any, name: str) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case float() if name == "failure_rate":
            return f"{value:.2%}"
        case float():
            return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return escape(str(value)[:80])


# ------------------------------------------------------------------------------------------------------------ charts


def _lines(rows: Sequence[dict[str, Any]], *names: str) -> str:
    """A chart with a line per queue over time: the sum of these columns."""
    series: dict[str, dict[datetime, float]] = defaultdict(dict)
    for row in rows:
        series[row["queue"]][row["time"]] = sum(row[name] or 0 for name in names)
    if not series:
        return "<p>Nothing.</p>"
    chosen = sorted(series, key=lambda queue: -sum(series[queue].values()))[:COLOURS]
    times = sorted({time for queue in chosen for time in series[queue]})
    top = max((value for queue in chosen for value in series[queue].values()), default=0) or 1
    marks = "".join(_polyline(series[queue], times, top, place) for place, queue in enumerate(chosen))
    legend = "".join(
        f'<span><i style="background:var(--c{place})"></i>{escape(queue)}</span>' for place, queue in enumerate(chosen)
    )
    others = f"<span>and {len(series) - COLOURS} smaller queues</span>" if len(series) > COLOURS else ""
    return f"{_svg(marks, times, top)}<div class='legend'>{legend}{others}</div>"


def _polyline(line: dict[datetime, float], times: Sequence[datetime], top: float, place: int) -> str:
    points = [(_x(time, times), _y(value, top)) for time, value in sorted(line.items())]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="var(--c{place})"/>' for x, y in points[:400])
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="var(--c{place})" stroke-width="1.8"/>{dots}'


def _x(time: datetime, times: Sequence[datetime]) -> float:
    whole = (times[-1] - times[0]).total_seconds()
    part = (time - times[0]).total_seconds() / whole if whole else 0.5
    return LEFT + part * (WIDTH - LEFT - 10)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - max(value, 0) / top * (HEIGHT - BOTTOM - 12)


def _svg(marks: str, times: Sequence[datetime], top: float) -> str:
    grid = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{_y(top * part, top):.1f}" y2="{_y(top * part, top):.1f}"'
        f' stroke="var(--line)"/><text x="{LEFT - 6}" y="{_y(top * part, top) + 4:.1f}" text-anchor="end">'
        f"{_cell(float(top * part), '')}</text>"
        for part in (0, 0.5, 1)
    )
    ends = (
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{times[0]:%Y-%m-%d %H:%M}</text>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 6}" text-anchor="end">{times[-1]:%Y-%m-%d %H:%M}</text>'
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{grid}{ends}{marks}</svg>'
