"""How long the admin's pages take beside a million jobs: each must answer in 300 ms."""

from __future__ import annotations

import statistics
import time
from typing import Any

from tests.benchmarks.lab import Row, laboratory, note, timed

JOBS = 1_000_000
BAR_MS = 300.0

# Most jobs are finished, some wait, a few failed; ids and keys at random, as they come.
FILL = """
INSERT INTO jobqueue_job (id, queue_id, policy, singleton_key, name, state, hold, attempt, tags, data, created_at,
    started_at, assigned_at, finalized_at, delete_at, error, fingerprint, assignee)
SELECT gen_random_uuid(), q, CASE q WHEN 'ordered' THEN 'key_strict_fifo' ELSE 'standard' END,
    CASE q WHEN 'ordered' THEN 'k' || CASE s WHEN 'failed' THEN i ELSE i %% 5000 END ELSE '' END, 'handler-' || i %% 20,
    s, CASE WHEN q = 'ordered' AND s = 'created' THEN 'lane' END, i %% 3, ARRAY['t' || i %% 100],
    '{"n": 1}', at, at, at, CASE WHEN s <> 'created' THEN at + interval '1 s' END,
    CASE WHEN s = 'completed' THEN at + interval '7 days' END,
    CASE s WHEN 'failed' THEN 'ValueError: broken' ELSE '' END,
    CASE s WHEN 'failed' THEN 'abc' ELSE '' END, 'worker-' || i %% 4
FROM (
    SELECT i, CASE WHEN i %% 3 = 0 THEN 'ordered' ELSE 'plain' END AS q,
        CASE WHEN i %% 500 = 0 THEN 'failed' WHEN i %% 10 = 1 THEN 'created' ELSE 'completed' END AS s,
        statement_timestamp() - (%(n)s - i) * interval '0.5 s' AS at
    FROM generate_series(1, %(n)s) i
) rows
"""
LISTS = {
    "jobs": "job/",
    "jobs, in the middle": "job/?older={half}",
    "jobs, newer": "job/?newer={half}",
    "jobs by state, common": "job/?state=completed",
    "jobs by state, rare": "job/?state=dead",
    "jobs by state, very rare": "job/?state=cancelling",
    "jobs by queue and state": "job/?queue=ordered&state=waiting",
    "jobs by handler": "job/?handler=handler-7",
    "jobs by handler, none": "job/?handler=nobody",
    "jobs by key": "job/?queue=ordered&key=k500",
    "jobs by tag": "job/?tag=t7",
    "jobs by worker": "job/?worker=worker-1",
    "jobs by range of time": "job/?created_at__range__lte={early}",
    "jobs by attempts, none": "job/?attempt__range__gte=50",
    "jobs by duration, none": "job/?duration__range__gte=5000",
    "jobs by beginning of a key": "job/?q=k12",
    "blocked keys": "blockedkey/",
    "blocked keys, page 20": "blockedkey/?p=20",
    "operations": "operation/",
    "overview, 1 hour": "",
    "overview, 24 hours": "?period=24h",
    "overview, 7 days": "?period=7d",
    "queues": "queue/",
    "queue": "queue/plain/change/",
    "schedules": "schedule/",
    "workers": "worker/",
    "failures": "failuregroup/",
}
DAYS = 30
# What maintenance has counted of each queue, each minute.
MINUTES = """
INSERT INTO jobqueue_queueminute (queue_id, minute, sent, started, completed, failed, retried, waiting, blocked_keys,
    waited, ran)
SELECT q.name, date_trunc('minute', statement_timestamp()) - m * interval '1 minute', 60, 60, 58, 1, 1,
    m %% 500, m %% 7, ARRAY[0, 0, 1, 5, 20, 20, 8, 4, 2], ARRAY[0, 0, 0, 2, 30, 20, 5, 1]
FROM jobqueue_queue q, generate_series(1, %s) m
"""
BATCH = 100


def measure(runs: int, scale: float) -> list[Row]:
    number = int(JOBS * scale)
    with laboratory(["bench_admin"]):
        from django.contrib.auth.models import User
        from django.db import connections
        from django.test import Client
        from django.test.utils import override_settings

        from django_jobqueue import services
        from django_jobqueue.engine.sql.statistics import RANGES, SUMMARIZE
        from django_jobqueue.models import Job
        from django_jobqueue.services.operations import begin_operation

        services.create_queue("plain")
        services.create_fifo_queue("ordered")
        note(f"admin: filling {number:,} jobs")
        with connections["default"].cursor() as cursor:
            cursor.execute(FILL, {"n": number})
            for (index,) in cursor.execute(RANGES).fetchall():
                cursor.execute(SUMMARIZE, [index])
            cursor.execute(MINUTES, [int(DAYS * 24 * 60 * scale)])
            cursor.execute("ANALYZE jobqueue_job, jobqueue_queueminute")
        with override_settings(ALLOWED_HOSTS=["testserver"]):
            client = Client()
            client.force_login(User.objects.create_superuser("bench", password="x"))
            blocked = Job.objects.filter(state="failed", queue="ordered")[:1].get()
            waiting = Job.objects.filter(queue="ordered", state="created", hold="lane")[:1].get()
            early = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() - number * 0.4))
            pages = {name: path.format(half=number // 2, early=early) for name, path in LISTS.items()}
            pages |= {"job that blocks": f"job/{blocked.pk}/change/", "job that waits": f"job/{waiting.pk}/change/"}
            operation = begin_operation("retry", selection={"states": ["expired", "failed"]}, operator="bench")
            pages["operation"] = f"operation/{operation.pk}/change/"
            found = [_row(client, name, f"/admin/jobqueue/{path}", runs) for name, path in pages.items()]
            return [*found, _refresh(runs)]


def _refresh(runs: int) -> Row:
    """What the database spends on one question of an open overview, beside one fetch."""
    from django_jobqueue import services
    from django_jobqueue.services.inspect.backlog import pulse

    def fetched() -> float:
        jobs: list[Any] = []
        took = timed(lambda: jobs.extend(services.fetch("plain", BATCH))) * 1000
        services.finish_many([(job, None) for job in jobs])
        return took

    asked: list[float] = []
    beside: list[float] = []
    for _ in range(max(5, runs)):
        asked.append(timed(lambda: pulse(using="default")) * 1000)
        beside.append(fetched())
    ours, theirs = statistics.median(asked), statistics.median(beside)
    note(f"  refresh: {ours:.1f} ms beside a fetch of {BATCH}: {theirs:.1f} ms")
    return Row(f"admin: refresh beside a fetch of {BATCH}", ours, theirs, 1.0, "ms", at_least=False, runs=asked)


def _row(client: Any, name: str, address: str, runs: int) -> Row:
    from django.core.cache import cache

    def get() -> None:
        response = client.get(address)
        if response.status_code != 200:
            raise AssertionError(f"{address}: {response.status_code}")

    get()  # what is compiled once is not counted
    times = []
    for _ in range(max(3, runs)):
        cache.clear()  # but what is drawn once a minute is
        times.append(timed(get) * 1000)
    row = Row(f"admin: {name}", statistics.median(times), BAR_MS, 1.0, "ms", at_least=False, runs=times)
    note(f"  {name}: {row.ours:.0f} ms")
    return row
