"""Figures, each compared with a small computation in SQL on the same rows; and the page that shows them."""

from __future__ import annotations

import csv
import random
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.models import Job, Report
from django_jobqueue.states import JobState
from tests.commands.calling import jobs
from tests.factories import JobFactory, QueueFactory

WAITED = "extract(epoch FROM started_at - greatest(created_at, coalesce(first_start_after, created_at)))::float8"
RAN = "CASE WHEN state = 'completed' THEN extract(epoch FROM finalized_at - assigned_at)::float8 END"
FAILED = "(state IN ('failed', 'expired') OR reason = 'exhausted')"


def percentiles(name: str, value: str) -> str:
    return ", ".join(
        f"percentile_disc({share}) WITHIN GROUP (ORDER BY {value}) AS {name}_p{round(share * 100)}"
        for share in (0.5, 0.95, 0.99)
    )


SUMMARY = f"""count(*) AS jobs, count(*) FILTER (WHERE state = 'completed') AS completed,
    count(*) FILTER (WHERE {FAILED}) AS failed, sum(retry_count)::bigint AS retries,
    count(*) FILTER (WHERE {FAILED})::float8
        / nullif(count(*) FILTER (WHERE {FAILED} OR state = 'completed'), 0) AS failure_rate,
    {percentiles("waited", WAITED)}, {percentiles("ran", RAN)}"""
BACKLOG = """SELECT queue_id AS queue, time,
    sum(sum(change)) OVER (PARTITION BY queue_id ORDER BY time)::bigint AS waiting
    FROM (SELECT queue_id, date_trunc('hour', created_at, 'UTC') AS time, 1 AS change FROM jobqueue_job
        UNION ALL SELECT queue_id, date_trunc('hour', finalized_at, 'UTC'), -1 FROM jobqueue_job
        WHERE finalized_at IS NOT NULL) c GROUP BY 1, 2 ORDER BY 1, 2"""
BLOCKED = """SELECT queue_id AS queue, CASE WHEN state = 'completed' THEN 'retried'
        WHEN reason = 'skipped' THEN 'skipped' WHEN state IN ('failed', 'expired') THEN 'still blocked'
        ELSE 'stopped' END AS released,
    count(*) AS times, count(DISTINCT singleton_key) AS keys,
    sum(extract(epoch FROM over - since))::float8 AS seconds, max(extract(epoch FROM over - since))::float8 AS longest
    FROM (SELECT *, (attempts->0->>'ended')::timestamptz AS since,
        CASE WHEN state IN ('failed', 'expired') THEN %s ELSE finalized_at END AS over
        FROM jobqueue_job WHERE policy = 'key_strict_fifo' AND attempts <> '[]') b GROUP BY 1, 2 ORDER BY 1, 2"""
KEYS = f"""SELECT queue_id AS queue, singleton_key, count(*) AS jobs, {percentiles("ran", RAN)}
    FROM jobqueue_job WHERE singleton_key <> '' GROUP BY 1, 2"""


def by_sql(sql: str, *params: Any) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def expected(now: datetime) -> dict[str, list[dict[str, Any]]]:
    def timed(unit: str) -> str:
        return f"""SELECT date_trunc('{unit}', finalized_at, 'UTC') AS time, queue_id AS queue, name, {SUMMARY}
            FROM jobqueue_job WHERE finalized_at IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""

    return {
        "handlers": by_sql(f"SELECT queue_id AS queue, name, {SUMMARY} FROM jobqueue_job GROUP BY 1, 2 ORDER BY 1, 2"),
        "hours": by_sql(timed("hour")),
        "days": by_sql(timed("day")),
        "failures": by_sql(
            f"SELECT fingerprint, queue_id AS queue, name, reason, count(*) AS jobs, min(finalized_at) AS first_at,"
            f" max(finalized_at) AS last_at FROM jobqueue_job WHERE {FAILED} AND fingerprint <> ''"
            f" GROUP BY 1, 2, 3, 4 ORDER BY jobs DESC, 1, 2, 3"
        ),
        "blocked": by_sql(BLOCKED, now),
        "busiest_keys": by_sql(f"{KEYS} ORDER BY jobs DESC, 1, 2 LIMIT 20"),
        "slowest_keys": by_sql(f"{KEYS} HAVING count({RAN}) > 0 ORDER BY ran_p95 DESC, 1, 2 LIMIT 20"),
        "backlog": by_sql(BACKLOG),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == (pytest.approx(other, rel=1e-9, abs=1e-6) if isinstance(other, float) else other))


@pytest.fixture
def past(spark) -> None:
    """A few hundred jobs of every ending, over two days."""
    choose = random.Random(7)
    queues = [services.create_fifo_queue("orders"), QueueFactory(name="emails")]
    start = timezone.now() - timedelta(days=2)
    ends = [*[JobState.COMPLETED] * 6, JobState.FAILED, JobState.STOPPED, JobState.CANCELLED, JobState.CREATED]
    for number in range(300):
        queue, state = choose.choice(queues), choose.choice(ends)
        created = start + timedelta(seconds=choose.randrange(150_000))
        begun = created + timedelta(seconds=choose.randrange(1, 4000), microseconds=choose.randrange(10**6))
        key = f"k{number}" if queue.is_ordered and state != JobState.COMPLETED else f"c{number % 9}"
        job = JobFactory(queue=queue, state=state, name=choose.choice(["pack", "ship"]),
                         singleton_key=key if queue.is_ordered else "", data={"secret": "s3cr3t-data"})  # fmt: skip
        entry = {"attempt": 1, "started": begun.isoformat(), "ended": (begun + timedelta(seconds=3)).isoformat()}
        failed = state == JobState.FAILED or choose.random() < 0.2
        started = state not in (JobState.CREATED, JobState.CANCELLED)
        over = begun + timedelta(seconds=choose.randrange(5, 900))
        Job.objects.filter(pk=job.pk).update(
            created_at=created,
            first_start_after=created + timedelta(seconds=30) if choose.random() < 0.2 else None,
            started_at=begun if started else None,
            assigned_at=begun + timedelta(seconds=1) if started else None,
            finalized_at=over if state != JobState.CREATED else None,
            retry_count=choose.randrange(2),
            attempts=[entry] if failed and started else [],
            fingerprint=f"f{number % 3}" if state == JobState.FAILED else "",
            reason="skipped" if state == JobState.STOPPED and number % 2 else job.reason,
            error="s3cr3t-error" if state == JobState.FAILED else "",
        )


def test_every_figure_is_what_sql_says_also_when_half_of_it_is_archived(spark, past, lake, tmp_path):
    from django_jobqueue.pipeline import analyze_jobs, archive_jobs

    page = tmp_path / "out" / "report.html"
    wanted = expected(timezone.now())
    archive_jobs(spark=spark, lake=lake, older_than=timedelta(days=1))
    left = Job.objects.count()
    assert 0 < left < 300

    found = analyze_jobs(spark=spark, lake=lake, report=page, tables=str(tmp_path / "tables"), format="csv")

    assert (found.jobs, found.live_jobs, found.lake_jobs, found.lake_runs) == (300, left, 300 - left, 1)
    assert set(found.tables) == set(wanted)
    for name, rows in wanted.items():
        if name != "blocked":
            assert same(found.tables[name], rows), name
    for one, other in zip(found.tables["blocked"], wanted["blocked"], strict=True):
        if one["released"] == "still blocked":  # "now" was a moment later
            assert one["seconds"] == pytest.approx(other["seconds"], rel=0.05)
            other |= {name: one[name] for name in ("seconds", "longest")}
        assert same(one, other)
    assert {one["released"] for one in found.tables["blocked"]} == {"retried", "skipped", "stopped", "still blocked"}
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(wanted)
    text = page.read_text()
    assert f"Read 1 run with {300 - left} jobs in the lake {lake}, and {left} jobs in the live table." in text
    assert "s3cr3t" not in text
    assert text.count("<svg") == 3
    assert not re.search(r"(src|href)=|@import|url\(", text), "it must stand alone"


def test_a_long_history_is_drawn_whole_and_its_tables_end_with_today(spark, past, tmp_path, monkeypatch):
    from django_jobqueue.pipeline import analyze_jobs, analyzing

    whole = analyze_jobs(spark=spark, report=tmp_path / "whole.html")
    monkeypatch.setattr(analyzing, "MOST_ROWS", 5)

    cut = analyze_jobs(spark=spark, report=tmp_path / "cut.html")

    for name in ("hours", "days"):
        assert len(whole.tables[name]) > 5
        assert cut.tables[name] == whole.tables[name][-5:]
    last = sorted(whole.tables["backlog"], key=lambda row: (row["time"], row["queue"]))[-5:]
    assert sorted(cut.tables["backlog"], key=lambda row: (row["time"], row["queue"])) == last
    assert sum(row["completed"] for row in cut.drawn) == sum(row["completed"] for row in whole.tables["hours"])
    assert {row["time"] for row in cut.drawn} == {row["time"] for row in whole.tables[f"{cut.unit}s"]}
    charts = [(tmp_path / name).read_text().split("<h2>Queues")[0] for name in ("whole.html", "cut.html")]
    assert re.findall("<polyline[^>]*>", charts[0])[:2] == re.findall("<polyline[^>]*>", charts[1])[:2]


def test_the_admin_keeps_the_newest_pages(spark, tmp_path, monkeypatch, queue):
    from django_jobqueue.pipeline import analyze_jobs, analyzing

    monkeypatch.setattr(analyzing, "MOST_REPORTS", 2)
    older = [Report.objects.create(page=str(n), jobs=0) for n in range(3)]
    page = tmp_path / "jobs.html"

    analyze_jobs(spark=spark, queue=queue.name, report=page)

    newest, other = Report.objects.all()
    assert (newest.page, newest.jobs, newest.queues) == (page.read_text(), 0, queue.name)
    assert other.pk == older[-1].pk


@pytest.mark.django_db
def test_where_only_reading_is_allowed_there_is_a_page_and_a_warning(caplog):
    from django_jobqueue.pipeline.analyzing import _keep

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        _keep("page", 1, [], "default")
        transaction.set_rollback(True)

    (record,) = caplog.records
    assert record.message.startswith("report could not be stored for the admin")
    assert not Report.objects.exists()


def test_an_empty_history_makes_a_page_too(spark, tmp_path):
    said = jobs("analyze", "--report", tmp_path / "jobs.html")

    assert (said.code, said.out.splitlines()) == (
        0, ["Read 0 jobs in the live table, and no lake.", f"0 jobs; the report is {tmp_path / 'jobs.html'}."],
    )  # fmt: skip
    assert "There are no jobs yet" in Path(tmp_path / "jobs.html").read_text()


def test_the_command_tells_the_handlers(spark, tmp_path):
    JobFactory(queue=QueueFactory(name="emails"), state=JobState.COMPLETED, name="mail")

    said = jobs("analyze", "--report", tmp_path / "jobs.html", "--json")

    assert said.json["tables"]["handlers"][0]["queue"] == "emails"
    assert said.json["jobs"] == 1


# What a spreadsheet would run as a formula, and what would make a cell of its own that is one.
FORMULAS = (
    "\n=1+1",
    "\uff1d1+1",
    "=1+1",
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    " =1+1",
    'x",=1+1',
    "x\n=1+1",
    "x\r=1+1",
    "x,=1+1",
)


def test_a_csv_table_holds_no_formula_and_numbers_stay_numbers(spark, tmp_path):
    from django_jobqueue.pipeline import analyze_jobs

    queue = QueueFactory(name="emails")
    for key in (*FORMULAS, "plain"):
        JobFactory(queue=queue, state=JobState.COMPLETED, singleton_key=key, name=key)

    analyze_jobs(spark=spark, tables=str(tmp_path), format="csv")

    (path,) = (tmp_path / "busiest_keys").glob("*.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    quoted = {key if key in ("plain", " =1+1") or key.startswith("x") else f"'{key}" for key in (*FORMULAS, "plain")}
    assert {row["singleton_key"] for row in rows} == quoted
    assert {row["jobs"] for row in rows} == {"1"}


def test_numbers_are_no_formulas(spark):
    from django_jobqueue.pipeline.analyzing import without_formulas

    table = spark.createDataFrame([(-5, -0.5, "-5", None)], "whole int, part double, text string, empty string")

    assert without_formulas(table).collect() == [(-5, -0.5, "'-5", None)]
