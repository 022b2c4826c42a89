"""The edges of the analysis: lake and live table in, tables and a report out."""

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
from ..log_texts import error_line
from ..models import Report
from . import figures
from .collected import as_dict
from .failures import explained
from .history import Scope, Sources, history, scope
from .progress import Progress, Tell, tell_nobody, watched
from .report import html
from .session import given_or_started

logger = logging.getLogger("django_jobqueue")

MOST_REPORTS = 20  # kept for the admin
MOST_ROWS = 5_000  # of a table in the report, the newest; the written tables have all
FORMATS = ("parquet", "csv")
HOURS_UNTIL = timedelta(days=14)  # a chart of hours shows no more than that well
# A spreadsheet takes a text that begins so for a formula; keys and names of handlers may come from outside. The last
# are the same signs in full width, which some spreadsheets take for them.
FORMULA = r"^[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]"


@dataclass(slots=True, kw_only=True)
class Analysis(Sources):
    """How many jobs there were, when it was, and the tables by name."""

    at: datetime
    jobs: int = 0
    unit: str = figures.HOUR  # of the charts and the backlog: days, once the history is long
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    drawn: list[dict[str, Any]] = field(default_factory=list)  # per queue and time, for the charts
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
    """Figures over lake and live table; a self-contained page goes to ``report``, tables to the folder ``tables``.

    They hold keys, handlers and fingerprints, never data, output or errors. ``lake`` is by default
    ``JOBQUEUE["LAKE"]``; without either, or with ``live_only``, only the live table is read. Raises ``InvalidOption``,
    ``QueueNotFound``, ``SparkUnavailable`` and ``LakeProblem``, also when there is no lake.
    """
    if format not in FORMATS:
        raise InvalidOption("format", f"expected one of {', '.join(FORMATS)}, got {format!r}")
    wanted = scope(lake, live_only, queue, database(using))
    page = None if report is None else _check_report(Path(report))
    with explained(wanted.place), given_or_started(spark, master) as own:
        found = _analyze(own, wanted, page is not None, tables, format, tell)
    if page is not None:
        with explained(f"the report {page}"):
            page.write_text(text := html(found), encoding="utf-8")
        found.report = str(page)
        _keep(text, found.jobs, wanted.queues, wanted.using)
    return found


def _check_report(path: Path) -> Path:
    """Before minutes of work: whether the page can be written."""
    with explained(f"the report {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidOption("report", f"{path} cannot be written", hint="Give the path of a file.")
    return path


def _analyze(
    spark: SparkSession, wanted: Scope, to_draw: bool, folder: str | None, format: str, tell: Tell
) -> Analysis:
    ((now,),) = rows(wanted.using, "SELECT statement_timestamp()")
    found = Analysis(at=now)
    with history(spark, wanted, found, figures.COLUMNS, tell) as jobs:
        kept = jobs.persist(StorageLevel.MEMORY_AND_DISK)
        with watched(spark, "reading", tell):
            ((found.jobs, first),) = kept.agg(F.count(F.lit(1)), F.min(F.unix_micros("created_at"))).collect()
        if first is not None and now.timestamp() - first / 1_000_000 > HOURS_UNTIL.total_seconds():
            found.unit = figures.DAY
        for place, (name, table) in enumerate(_tables(kept, now, found.unit).items(), 1):
            tell(Progress("computing", place, len(TABLES), "tables"))
            found.tables[name] = _collected(table)
            if folder is not None:
                with explained(f"the folder of the tables, {folder},"):
                    found.written.append(_write(table, f"{folder.rstrip('/')}/{name}", format))
        if to_draw:
            found.drawn = [as_dict(row) for row in figures.by_time(kept, found.unit, per=["queue"]).collect()]
        kept.unpersist()
    return found


def _collected(table: DataFrame) -> list[dict[str, Any]]:
    """In its order; of a table over time that is too long, the end."""
    if "time" not in table.columns:
        return [as_dict(row) for row in table.limit(MOST_ROWS).collect()]
    order = [name for name in table.columns if name in ("time", "queue", "name")]
    newest = sorted(order, key=lambda name: name != "time")
    last = table.orderBy(*(F.col(name).desc() for name in newest)).limit(MOST_ROWS).orderBy(*order)
    return [as_dict(row) for row in last.collect()]


def _keep(page: str, jobs: int, queues: Iterable[str], using: str) -> None:
    """For the admin; not where only reading is allowed."""
    try:
        with transaction.atomic(using=using):
            reports = Report.objects.using(using)
            kept = reports.create(page=page, jobs=jobs, queues=", ".join(queues))
            older = reports.filter(pk__lte=kept.pk).order_by("-pk").values("pk")[MOST_REPORTS:]
            reports.filter(pk__in=older).delete()
    except DatabaseError as error:
        logger.warning(
            "report could not be stored for the admin: %s", error_line(error), extra={"error": str(error).strip()}
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
        # Spaces are kept, because a text may begin with one and then with a formula. Quotes are doubled, as
        # spreadsheets expect it: what follows an escaped one would be a cell of its own.
        without_formulas(table).coalesce(1).write.mode("overwrite").csv(
            path, header=True, escape='"', ignoreLeadingWhiteSpace=False, ignoreTrailingWhiteSpace=False
        )
    else:
        table.coalesce(1).write.mode("overwrite").parquet(path)
    return path


def without_formulas(table: DataFrame) -> DataFrame:
    """Texts that a spreadsheet would run begin with an apostrophe; numbers and times stay as they are."""
    texts = [field.name for field in table.schema.fields if isinstance(field.dataType, StringType)]
    return table.withColumns(
        {name: F.when(F.col(name).rlike(FORMULA), F.concat(F.lit("'"), name)).otherwise(F.col(name)) for name in texts}
    )
