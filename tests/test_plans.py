"""Which index each hot statement uses, on a filled table, with true statistics and with the worst ones.

The worst are those taken while the queue was empty: the planner then believes that nothing waits, and every index
looks as good as any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from django_jobqueue import maintenance, services
from django_jobqueue.engine import transactions
from django_jobqueue.engine.recovery import release_due
from django_jobqueue.engine.sql.session import BEGIN
from django_jobqueue.engine.sql.statistics import RANGES, SUMMARIZE
from django_jobqueue.grouping import Grouping
from django_jobqueue.maintenance import maintain
from django_jobqueue.models import Job, Queue
from django_jobqueue.partitions import DEFAULT
from django_jobqueue.prometheus import metrics_text
from django_jobqueue.services.maintain import fill_minutes

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("untouched_table")]

ROWS = 4_000


@dataclass
class Plans:
    """What the planner chose for every statement on the job table while some verbs ran."""

    indexes: set[str] = field(default_factory=set)
    sequential: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)  # read along an index of all jobs, from its beginning to its end
    sorts: list[str] = field(default_factory=list)


@contextmanager
def explained() -> Iterator[Plans]:
    plans, names = Plans(), _names()

    def explain(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if "jobqueue_job" in sql and sql.lstrip().startswith(("SELECT", "WITH", "UPDATE", "INSERT", "DELETE")):
            with connection.connection.cursor() as cursor:
                cursor.execute("EXPLAIN (FORMAT JSON) " + sql, params)
                (found,) = cursor.fetchone()
            _walk((found if isinstance(found, list) else json.loads(found))[0]["Plan"], sql, plans, names)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield plans


def _names() -> dict[str, str]:
    """The indexes of the part, by the name of the index of the whole table they belong to."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text, inhparent::regclass::text FROM pg_inherits "
            "JOIN pg_class ON pg_class.oid = inhrelid WHERE relkind = 'i'"
        )
        return dict(cursor.fetchall())


def _walk(node: dict[str, Any], sql: str, plans: Plans, names: dict[str, str]) -> None:
    if "Index Name" in node:
        plans.indexes.add(names.get(node["Index Name"], node["Index Name"]))
    if node["Node Type"] == "Seq Scan" and re.fullmatch("jobqueue_job(_.*)?", node["Relation Name"]):
        plans.sequential.append(sql)
    if names.get(node.get("Index Name", "")) == "jobqueue_job_pkey" and "Index Cond" not in node:
        plans.whole.append(sql)
    if node["Node Type"] == "Sort" and any("Index" in child["Node Type"] for child in node["Plans"]):
        plans.sorts.append(sql)
    for child in node.get("Plans", ()):
        _walk(child, sql, plans, names)


@pytest.fixture(params=["true statistics", "statistics of an empty queue"])
def filled(request: pytest.FixtureRequest) -> None:
    for name in ("other", "plain"):
        services.create_queue(name)
    services.create_fifo_queue("ordered")
    _fill("other", "standard")
    if request.param != "true statistics":
        _analyze()
    _fill("plain", "standard")
    _fill("ordered", "key_strict_fifo")
    if request.param == "true statistics":
        _analyze()


def _fill(queue: str, policy: str, *, number: int = ROWS, age: str = "0 s") -> None:
    """A quarter each finished, fetchable, waiting for its time, and waiting for its lane where there are lanes."""
    ordered = policy == "key_strict_fifo"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, policy, singleton_key, state, hold, finalized_at, delete_at, "
            "tags, start_after, data, created_at) "
            "SELECT gen_random_uuid(), %(queue)s, %(policy)s, CASE WHEN %(ordered)s THEN 'k' || i %% 500 ELSE '' END, "
            "CASE i %% 4 WHEN 0 THEN 'completed' ELSE 'created' END, "
            "CASE i %% 4 WHEN 2 THEN 'until' WHEN 3 THEN CASE WHEN %(ordered)s THEN 'lane' ELSE 'until' END END, "
            "CASE WHEN i %% 4 = 0 THEN now() - %(age)s::interval END, "
            "CASE WHEN i %% 4 = 0 THEN now() + interval '1 day' END, "
            "CASE WHEN i %% 2 = 0 THEN ARRAY['blue'] ELSE ARRAY[]::text[] END, "
            "now() + (i %% 4 IN (2, 3))::int * interval '1 day', '{}', now() - %(age)s::interval "
            "FROM generate_series(1, %(n)s) i",
            {"queue": queue, "policy": policy, "n": number, "ordered": ordered, "age": age},
        )


def _analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobqueue_job")


def test_a_fetch_reads_along_the_fetchable_jobs(filled):  # R318 R350 F60
    with explained() as plans:
        assert len(services.fetch("plain", 100)) == 100

    assert "jobqueue_job_fetchable" in plans.indexes
    assert not plans.sequential
    assert not plans.sorts


@pytest.mark.django_db(transaction=True)
def test_what_is_planned_for_any_values_reads_along_the_same_indexes(filled):
    """Statements that are sent by name; see :mod:`django_jobqueue.engine.transactions`."""
    connection.close()
    for _ in range(transactions.AFTER + 1):
        services.send("plain")
        services.send("ordered", singleton_key="a")
        bookmarks = {"plain": services.Bookmark(), "ordered": services.Bookmark()}
        for queue in ("plain", "plain", "ordered", "ordered"):
            jobs = services.fetch(queue, 5, bookmark=bookmarks[queue])
            assert len(services.finish_many([(job, None) for job in jobs], hand_over=True).completed) == 5
            services.finish_many([(job, None) for job in services.fetch(queue, 5)])
    plans, indexes = Plans(), _names()

    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        prepared = [statement.partition(" AS ")[2] for (statement,) in cursor.fetchall()]
        cursor.execute(BEGIN.replace(", true)", ", false)"))
        for statement in prepared:
            cursor.execute("EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + statement)
            _walk(cursor.fetchone()[0][0]["Plan"], statement, plans, indexes)
    connection.close()

    assert len(prepared) >= 10
    assert {"jobqueue_job_fetchable", "jobqueue_job_lane", "jobqueue_job_one_blocker_per_key"} <= plans.indexes
    assert "jobqueue_job_running" not in plans.indexes  # all that runs, for each job that is finished
    assert not plans.sequential
    assert not plans.whole
    assert not plans.sorts


def test_a_fetch_by_tags_looks_into_the_index_of_tags(filled):  # R236
    services.send("plain", tags=["red", "blue"])

    with explained() as plans:
        assert len(services.fetch("plain", 5, tags=["red"])) == 1

    assert {"jobqueue_job_fetchable", "jobqueue_job_fetchable_tags"} <= plans.indexes
    assert not plans.sequential


def test_an_ordered_fetch_probes_each_key_by_its_own_indexes(filled):  # R009 F60
    with explained() as plans:
        assert len(services.fetch("ordered", 50)) == 50

    assert {
        "jobqueue_job_fetchable",
        "jobqueue_job_one_blocker_per_key",
        "jobqueue_job_lane",
        "jobqueue_job_lane_until",
    } <= plans.indexes
    assert not plans.sequential


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_grouped_fetch_probes_each_group_by_its_own_indexes(filled, grouping):  # R037
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {DEFAULT} SET group_key = 'g' || seq % 40 WHERE queue_id = 'plain'")

    with explained() as plans:
        assert len(services.fetch("plain", 30, grouping=grouping)) > 0

    assert {"jobqueue_job_fetchable", "jobqueue_job_group", "jobqueue_job_group_running"} <= plans.indexes
    assert not plans.sequential


def test_the_jobs_without_a_group_are_found_along_the_order(filled):  # R037 R059
    Job.objects.in_queue("plain").held_until().delete()  # the earliest of them keeps the others waiting

    with explained() as plans:
        assert len(services.fetch("plain", 30, grouping="fill")) == 30

    assert {"jobqueue_job_fetchable", "jobqueue_job_no_group_waiting"} <= plans.indexes
    assert not plans.sequential


def test_finishing_goes_by_the_primary_key(filled):
    jobs = services.fetch("plain", 100)

    with explained() as plans:
        assert len(services.finish_many([(job, None) for job in jobs]).completed) == 100

    assert plans.indexes == {"jobqueue_job_pkey"}
    assert not plans.sequential


def test_a_hand_over_finds_the_next_of_each_lane_by_index(filled):
    jobs = services.fetch("ordered", 50)

    with explained() as plans:
        finished = services.finish_many([(job, None) for job in jobs], hand_over=True)

    assert len(finished.next) == 50
    assert {"jobqueue_job_pkey", "jobqueue_job_lane", "jobqueue_job_until"} <= plans.indexes
    assert not plans.sequential


def test_jobs_that_became_due_are_found_by_their_time(filled):
    services.send("plain", delay=60)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {DEFAULT} SET start_after = now() WHERE seq = (SELECT max(seq) FROM {DEFAULT})")

    with explained() as plans:
        services.fetch("plain", 1)

    assert "jobqueue_job_until" in plans.indexes
    assert not plans.sequential


def test_the_jobs_of_a_worker_are_found_by_its_name(filled):  # R290
    services.fetch("plain", 10, worker="w1")

    with explained() as plans:
        assert services.mark_worker_unresponsive("w1") == {"plain": 10}

    assert "jobqueue_job_running" in plans.indexes
    assert not plans.sequential


def test_failing_goes_by_the_primary_key(filled):
    (job,) = services.fetch("plain")

    with explained() as plans:
        services.fail(job, "boom")

    assert "jobqueue_job_pkey" in plans.indexes
    assert not plans.sequential


def test_a_send_with_an_id_looks_it_up_by_the_primary_key(filled):
    (job,) = services.fetch("plain")

    with explained() as plans:
        assert services.send("other", id=job.pk, on_duplicate="return") == job
        assert services.send_many("other", [{"id": job.pk}, {"id": uuid4()}], on_duplicate="return")[0] == job.pk

    assert "jobqueue_job_pkey" in plans.indexes
    assert not plans.sequential


def test_statistics_by_tags_use_the_index_of_tags(filled):  # R236
    services.send("plain", tags=["red"])

    with explained() as plans:
        assert services.stats(tags=["red"]).total == 1

    assert "jobqueue_job_tags" in plans.indexes
    assert not plans.sequential


def test_blocked_keys_are_found_without_reading_what_waits(filled):  # R023
    (job,) = services.fetch("ordered")
    services.fail(job, "boom", for_good=True)

    with explained() as plans:
        assert services.blocked_keys("ordered") == [job.singleton_key]

    assert plans.indexes <= {"jobqueue_job_dead", "jobqueue_job_one_blocker_per_key"}
    assert not plans.sequential


# ------------------------------------------------------------------------------------------- what comes every minute

SWEEPS: dict[str, tuple[Callable[[], object], set[str]]] = {
    "expire": (services.expire, {"jobqueue_job_running"}),
    "recover": (services.recover_lost, {"jobqueue_job_running"}),
    "release": (release_due, {"jobqueue_job_until", "jobqueue_job_leased"}),
    "lanes": (services.check_lanes, {"jobqueue_job_lane", "jobqueue_job_one_blocker_per_key"}),
    "cleanup": (services.cleanup, {"jobqueue_job_to_delete", "jobqueue_job_fetchable", "jobqueue_job_until"}),
    "backlogs": (services.warn_backlogs, {"jobqueue_job_fetchable", "jobqueue_job_until", "jobqueue_job_lane"}),
    "count": (fill_minutes, {"jobqueue_job_ranges", "jobqueue_job_fetchable", "jobqueue_job_lane"}),
    "metrics": (
        metrics_text,
        {"jobqueue_job_fetchable", "jobqueue_job_until", "jobqueue_job_lane", "jobqueue_job_dead"},
    ),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_goes_by_the_index_of_what_it_looks_for(filled, name):
    sweep, wanted = SWEEPS[name]
    services.update_queue("plain", warning_queue_size=1)
    services.fetch("plain", 20, lease=60)

    with explained() as plans:
        sweep()

    assert wanted <= plans.indexes
    assert not plans.sequential
    assert not plans.whole


def test_a_pass_of_maintenance_that_finds_work_goes_by_indexes_too(filled):
    services.create_queue("single", policy="singleton")
    for _ in range(3):
        services.send("single")
    services.fetch("single", 3)
    for job in services.fetch("plain", 30, worker="w"):
        services.complete(job)
    services.fetch("plain", 30, worker="w")
    services.fetch("ordered", 30, worker="w")
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {DEFAULT} SET delete_at = now() - interval '1 s', expire_at = now() - interval '1 h', "
            "created_at = now() - interval '20 d', start_after = now() - interval '15 d' WHERE seq % 7 = 0"
        )

    with explained() as plans:
        report = maintain()

    assert report.errors == {}
    assert min(report[name].number for name in ("expire", "release", "count", "cleanup")) > 0
    assert not plans.sequential
    assert not plans.whole


@pytest.mark.slow
@pytest.mark.parametrize("analyzed", (True, False))
def test_a_pass_of_maintenance_reads_no_more_when_there_are_a_hundred_thousand_jobs(analyzed, monkeypatch):
    """Counted by the server itself: rows of jobs that were read, by any plan."""
    hurried = tuple(step._replace(looks=1_000) for step in maintenance.STEPS)
    monkeypatch.setattr(maintenance, "STEPS", hurried)
    monkeypatch.setattr("django_jobqueue.engine.backlog.MOST", 1_000)
    services.create_queue("plain")
    services.create_fifo_queue("ordered")
    with connection.cursor() as cursor:  # a fresh file: what earlier tests rolled back would still be in its ranges
        cursor.execute(f"TRUNCATE {DEFAULT}")
    _analyze()
    for queue, policy in (("plain", "standard"), ("ordered", "key_strict_fifo")):
        _fill(queue, policy, number=50_000, age="2 h")
    with connection.cursor() as cursor:
        for (index,) in cursor.execute(RANGES).fetchall():
            cursor.execute(SUMMARIZE, [index])
    if analyzed:
        _analyze()
    before = _rows_read()

    report = maintain()

    assert report.errors == {}
    assert _rows_read() - before < 30_000


def _rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = %s", [DEFAULT]
        )
        return int(cursor.fetchone()[0])


def test_a_job_that_succeeds_at_once_is_in_four_indexes_besides_the_one_of_ranges():
    services.create_queue("plain")
    job = services.send("plain", {"a": 1})
    touched = _indexes_holding(job)
    (job,) = services.fetch("plain")
    touched |= _indexes_holding(job)
    services.complete(job)
    touched |= _indexes_holding(job)

    assert touched == {
        "jobqueue_job_pkey",
        "jobqueue_job_fetchable",
        "jobqueue_job_running",
        "jobqueue_job_to_delete",
        "jobqueue_job_ranges",  # a BRIN index: no entry per row
    }


def _indexes_holding(job: Job | None) -> set[str]:
    assert job is not None
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelid::regclass::text, pg_get_expr(indpred, indrelid) FROM pg_index "
            "WHERE indrelid = 'jobqueue_job'::regclass"
        )
        holding = set()
        for name, predicate in cursor.fetchall():
            condition = (predicate or "true").replace("%", "%%")
            cursor.execute(f"SELECT 1 FROM jobqueue_job WHERE id = %s AND ({condition})", [job.pk])
            if cursor.fetchone():
                holding.add(name)
        return holding


def test_a_queue_with_its_own_part_is_read_alone(transactional_db):
    services.create_queue("own", partition=True)
    services.send("own")

    with explained() as plans:
        (job,) = services.fetch("own")
        services.complete(job)

    assert not any(name.startswith(DEFAULT) for name in plans.indexes)
    assert Queue.objects.get(pk="own").partition
    services.delete_queue("own")  # its table would outlive the test
