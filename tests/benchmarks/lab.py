"""A server of its own, databases with our tables, and interleaved measuring."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from example_project.postgres import Server, throwaway
from tests.settings import address

SETTINGS: dict[str, str | int] = {
    "max_connections": 100,
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
DATA = {"n": 1, "text": "x" * 80}  # about 100 bytes


@dataclass
class Row:
    """One line of the table: what was measured, beside what, and what the ratio must be."""

    name: str
    ours: float
    beside: float | None
    bar: float | None  # none: shown for comparison only
    unit: str
    at_least: bool = True  # else at most
    runs: list[float] = field(default_factory=list)
    problem: str = ""  # why there is nothing beside it

    @property
    def ratio(self) -> float | None:
        return self.ours / self.beside if self.beside else None

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        if self.ratio is None:
            return False
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar


@contextmanager
def laboratory(names: Sequence[str]) -> Iterator[Server]:
    """A server with fsync on, and Django set up with one database of each name, all with our tables."""
    with throwaway(fsync=True, settings=SETTINGS) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE bench_template")
        connect(server.dsn, ["bench_template"])
        from django.core.management import call_command
        from django.db import connections

        call_command("migrate", verbosity=0, database="bench_template")
        connections.close_all()
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for name in names:
                connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE bench_template").format(sql.Identifier(name)))
        connect(server.dsn, ["bench_template", *names])
        try:
            yield server
        finally:
            connections.close_all()


def connect(dsn: str, names: Sequence[str]) -> None:
    """Set up Django, in this process, for these databases of the server."""
    import django
    from django.apps import apps
    from django.conf import settings
    from django.db import connections

    os.environ["JOBQUEUE_TEST_DSN"] = dsn
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    base = {**settings.DATABASES["default"], **address(dsn)}
    for alias in ["default", *names]:
        settings.DATABASES[alias] = {**base, "NAME": names[0] if alias == "default" else alias}
    if not apps.ready:
        django.setup()
    connections.settings = connections.configure_settings(settings.DATABASES)
    for alias in list(connections):  # those made before would keep their old address
        if connections[alias].connection is None:
            del connections[alias]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(runs: int, works: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Measure everything once, then everything again, so that a slow moment of the machine hits all alike."""
    measured: dict[str, list[float]] = {name: [] for name in works}
    for run in range(runs):
        for name, work in works.items():
            measured[name].append(work())
        note(f"  run {run + 1} of {runs}: " + ", ".join(f"{n} {v[-1]:,.4g}" for n, v in measured.items()))
    return measured


def medians(measured: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in measured.items()}


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _figures(row: Row) -> str:
    bar = "" if row.bar is None else f"{'≥' if row.at_least else '≤'} {row.bar:g}"
    verdict = "" if row.holds else "   MISSED"
    if row.beside is None or row.ratio is None:
        return f"{row.ours:12,.4g} {'-':>12} {'-':>7} {bar:>8}{verdict}  {row.unit}  {row.problem.strip()}"
    return f"{row.ours:12,.4g} {row.beside:12,.4g} {row.ratio:7.2f} {bar:>8}{verdict}  {row.unit}"


def report(rows: Sequence[Row], path: Path) -> bool:
    """Print the table, write it as JSON, and say whether every bar holds."""
    width = max(len(row.name) for row in rows)
    print(f"\n{'':{width}}  {'ours':>12} {'beside':>12} {'ratio':>7} {'bar':>8}")
    for row in rows:
        print(f"{row.name:{width}}  {_figures(row)}")
    found = [asdict(row) | {"ratio": row.ratio, "holds": row.holds} for row in rows]
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(f"\nwritten to {path}")
    return all(row.holds for row in rows)
