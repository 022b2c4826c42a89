"""The edges of the analysis: lake and live table in, tables and a report out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import DatabaseError, transaction
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..conf import get_settings
from ..exceptions import InvalidOption
from ..models import Report
from ..services.queues import named
from ..services.transactions import database, rows
from . import figures
from .auditing import history
from .collected import as_dict
from .progress import Progress, Tell, tell_nobody, watched
from .report import html
from .session import spark_session

logger = logging.getLogger("django_jobqueue")

MOST_REPORTS = 20  # kept for the admin
MOST_ROWS = 5_000  # of a table in the report, the newest; the written tables have all
FORMATS = ("parquet", "csv")
HOURS_UNTIL = timedelta(days=14)  # a chart of hours shows no more than that well


@dataclass(slots=True)
class Analysis:
    """How many jobs there were, when it was, and the tables by name."""

    at: datetime
    jobs: int = 0
    lake: str = ""
    unit: str = figures.HOUR  # of the charts and the backlog: days, once the history is long
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    drawn: list[dict[str, Any]] = field(default_factory=list)  # per queue and time, for the charts
    report: str = ""
    written: list[str] = field(default_factory=list)


def analyze_jobs(
    *,
    lake: str | None = None,
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

    They hold keys, handlers and fingerprints, never data, output or errors. Raises ``InvalidOption``,
    ``SparkUnavailable`` and ``LakeProblem``.
    """
    if format not in FORMATS:
        raise InvalidOption("format", f"expected one of {', '.join(FORMATS)}, got {format!r}")
    using = database(using)
    queues = [named(one) for one in ([queue] if isinstance(queue, str) else queue)]
    if spark is None:
        with spark_session(master) as own:
            return _analyze(own, lake, queues, report, tables, format, tell, using)
    return _analyze(spark, lake, queues, report, tables, format, tell, using)


def _analyze(
    spark: SparkSession,
    lake: str | None,
    queues: list[str],
    report: str | Path | None,
    folder: str | None,
    format: str,
    tell: Tell,
    using: str,
) -> Analysis:
    ((now,),) = rows(using, "SELECT statement_timestamp()")
    found = Analysis(at=now, lake=lake or get_settings().LAKE or "")
    with history(spark, lake, figures.COLUMNS, queues, using, tell) as jobs:
        kept = jobs.persist(StorageLevel.MEMORY_AND_DISK)
        with watched(spark, "reading", tell):
            ((found.jobs, first),) = kept.agg(F.count(F.lit(1)), F.min(F.unix_micros("created_at"))).collect()
        if first is not None and now.timestamp() - first / 1_000_000 > HOURS_UNTIL.total_seconds():
            found.unit = figures.DAY
        for place, (name, table) in enumerate(_tables(kept, now, found.unit).items(), 1):
            tell(Progress("computing", place, len(TABLES), "tables"))
            if folder is not None:
                found.written.append(_write(table, f"{folder.rstrip('/')}/{name}", format))
            found.tables[name] = _collected(table)
        if report is not None:
            found.drawn = [as_dict(row) for row in figures.by_time(kept, found.unit, per=["queue"]).collect()]
        kept.unpersist()
    if report is not None:
        path = Path(report)
        path.parent.mkdir(parents=True, exist_ok=True)
        page = html(found)
        path.write_text(page, encoding="utf-8")
        found.report = str(path)
        _keep(page, found.jobs, queues, using)
    return found


def _collected(table: DataFrame) -> list[dict[str, Any]]:
    """In its order; of a table over time that is too long, the end."""
    if "time" not in table.columns:
        return [as_dict(row) for row in table.limit(MOST_ROWS).collect()]
    order = [name for name in table.columns if name in ("time", "queue", "name")]
    newest = sorted(order, key=lambda name: name != "time")
    last = table.orderBy(*(F.col(name).desc() for name in newest)).limit(MOST_ROWS).orderBy(*order)
    return [as_dict(row) for row in last.collect()]


def _keep(page: str, jobs: int, queues: list[str], using: str) -> None:
    """For the admin; not where only reading is allowed."""
    try:
        with transaction.atomic(using=using):
            reports = Report.objects.using(using)
            kept = reports.create(page=page, jobs=jobs, queues=", ".join(queues))
            older = reports.filter(pk__lte=kept.pk).order_by("-pk").values("pk")[MOST_REPORTS:]
            reports.filter(pk__in=older).delete()
    except DatabaseError as error:
        logger.warning("the report is not shown in the admin", extra={"error": str(error).strip()})


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
    writer = table.coalesce(1).write.mode("overwrite")
    if format == "csv":
        writer = writer.option("header", True)
    writer.format(format).save(path)
    return path
