"""The analysis: reads the lake and the live table, and writes tables and a report."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import DatabaseError, transaction
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from ..engine.databases import database, rows
from ..exceptions import InvalidOption
from ..log_texts import error_line, error_text
from ..models import Report
from . import figures
from .collected import as_dict
from .failures import explained
from .history import Scope, Sources, check_scope, history
from .progress import Progress, Tell, tell_nobody, watched
from .report import html
from .session import given_or_started

logger = logging.getLogger("django_jobqueue")

MOST_REPORTS = 20  # kept for the admin
MOST_ROWS = 5_000  # of a table in the report, the newest; the written tables have all
FORMATS = ("parquet", "csv")
HOURS_UNTIL = timedelta(days=14)  # charts of a longer history count days instead of hours
# A spreadsheet evaluates a text that begins with one of these characters as a formula, and users may choose keys and
# names of handlers. The last four are full-width forms, which some spreadsheets accept too.
FORMULA = r"^[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]"


@dataclass(slots=True, kw_only=True)
class Analysis(Sources):
    """What an analysis read, when it ran, the number of jobs, and the tables by name."""

    at: datetime
    jobs: int = 0
    unit: str = figures.HOUR  # of the charts and the backlog; days if the history is long
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    drawn: list[dict[str, Any]] = field(default_factory=list)  # figures per queue and time, for the charts
    report: str = ""
    written: list[str] = field(default_factory=list)


def analyze_jobs(
    *,
    lake: str | None = None,
    live_only: bool = False,
    queue: str | Iterable[str] = (),
    report: str | Path | None = None,
    tables: str | None = None,
    format: str = "parquet",
    spark: SparkSession | None = None,
    master: str | None = None,
    tell: Tell = tell_nobody,
    using: str | None = None,
) -> Analysis:
    """Compute statistics of the jobs in the lake and the live table.

    Writes a self-contained HTML page to ``report``, and the tables to the folder ``tables``. Both contain keys,
    handlers and fingerprints, but never data, output or errors. ``lake`` is by default ``JOBQUEUE["LAKE"]``; without
    either, or with ``live_only``, only the live table is read. Raises ``InvalidOption``, ``QueueNotFound``,
    ``SparkUnavailable``, and ``LakeProblem``, also if there is no lake.
    """
    if format not in FORMATS:
        raise InvalidOption("format", f"expected one of {', '.join(FORMATS)}, got {format!r}")
    scope = check_scope(lake, live_only, queue, database(using))
    path = None if report is None else _check_report(Path(report))
    with explained(scope.place), given_or_started(spark, master) as session:
        analysis = _analyze(session, scope, path is not None, tables, format, tell)
    if path is not None:
        with explained(f"the report {path}"):
            path.write_text(page := html(analysis), encoding="utf-8")
        analysis.report = str(path)
        _keep(page, analysis.jobs, scope.queues, scope.using)
    return analysis


def _check_report(path: Path) -> Path:
    """Raise ``InvalidOption`` if the page cannot be written, before minutes of computing."""
    with explained(f"the report {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidOption("report", f"{path} cannot be written", hint="Give the path of a file.")
    return path


def _analyze(
    spark: SparkSession, scope: Scope, has_charts: bool, folder: str | None, format: str, tell: Tell
) -> Analysis:
    ((now,),) = rows(scope.using, "SELECT statement_timestamp()")
    analysis = Analysis(at=now)
    with history(spark, scope, analysis, figures.COLUMNS, tell) as jobs:
        cached = jobs.persist(StorageLevel.MEMORY_AND_DISK)
        with watched(spark, "reading", tell):
            ((analysis.jobs, first),) = cached.agg(F.count(F.lit(1)), F.min(F.unix_micros("created_at"))).collect()
        if first is not None and now.timestamp() - first / 1_000_000 > HOURS_UNTIL.total_seconds():
            analysis.unit = figures.DAY
        for number, (name, table) in enumerate(_tables(cached, now, analysis.unit).items(), 1):
            tell(Progress("computing", number, len(TABLES), "tables"))
            analysis.tables[name] = _collected(table)
            if folder is not None:
                with explained(f"the folder of the tables, {folder},"):
                    analysis.written.append(_write(table, f"{folder.rstrip('/')}/{name}", format))
        if has_charts:
            analysis.drawn = [as_dict(row) for row in figures.by_time(cached, analysis.unit, per=["queue"]).collect()]
        cached.unpersist()
    return analysis


def _collected(table: DataFrame) -> list[dict[str, Any]]:
    """The rows of a table in its order; of a table over time, the newest if there are too many."""
    if "time" not in table.columns:
        return [as_dict(row) for row in table.limit(MOST_ROWS).collect()]
    order = [name for name in table.columns if name in ("time", "queue", "name")]
    newest = sorted(order, key=lambda name: name != "time")
    last = table.orderBy(*(F.col(name).desc() for name in newest)).limit(MOST_ROWS).orderBy(*order)
    return [as_dict(row) for row in last.collect()]


def _keep(page: str, jobs: int, queues: Iterable[str], using: str) -> None:
    """Store the report for the admin; where the database refuses that, log a warning."""
    try:
        with transaction.atomic(using=using):
            reports = Report.objects.using(using)
            kept = reports.create(page=page, jobs=jobs, queues=", ".join(queues))
            older = reports.filter(pk__lte=kept.pk).order_by("-pk").values("pk")[MOST_REPORTS:]
            reports.filter(pk__in=older).delete()
    except DatabaseError as error:
        logger.warning(
            "report could not be stored for the admin: %s", error_line(error), extra={"error": error_text(error)}
        )


TABLES = ("handlers", "hours", "days", "failures", "blocked", "busiest_keys", "slowest_keys", "backlog")


def _tables(jobs: DataFrame, now: datetime, unit: str) -> dict[str, DataFrame]:
    return {
        "handlers": figures.by_handler(jobs),
        "hours": figures.by_time(jobs, figures.HOUR),
        "days": figures.by_time(jobs, figures.DAY),
        "failures": figures.failures(jobs),
        "blocked": figures.blocked(jobs, F.lit(now)),
        "busiest_keys": figures.busiest_keys(jobs),
        "slowest_keys": figures.slowest_keys(jobs),
        "backlog": figures.backlog(jobs, unit),
    }


def _write(table: DataFrame, path: str, format: str) -> str:
    if format == "csv":
        # Spaces are kept: without them, a text that begins with a space and a formula would become a formula. Quotes
        # are doubled: spreadsheets do not know escaped quotes, and would begin a new cell after one.
        without_formulas(table).coalesce(1).write.mode("overwrite").csv(
            path, header=True, escape='"', ignoreLeadingWhiteSpace=False, ignoreTrailingWhiteSpace=False
        )
    else:
        table.coalesce(1).write.mode("overwrite").parquet(path)
    return path


def without_formulas(table: DataFrame) -> DataFrame:
    """Put an apostrophe before texts that a spreadsheet would evaluate; numbers and times stay as they are."""
    texts = [field.name for field in table.schema.fields if isinstance(field.dataType, StringType)]
    return table.withColumns(
        {name: F.when(F.col(name).rlike(FORMULA), F.concat(F.lit("'"), name)).otherwise(F.col(name)) for name in texts}
    )
