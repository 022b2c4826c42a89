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
}


def measure(runs: int, scale: float) -> list[Row]:
    number = int(JOBS * scale)
    with laboratory(["bench_admin"]):
        from django.contrib.auth.models import User
        from django.db import connections
        from django.test import Client
        from django.test.utils import override_settings

        from django_jobqueue import services
        from django_jobqueue.models import Job
        from django_jobqueue.services.operations import begin_operation
        from django_jobqueue.statistics import RANGES, SUMMARIZE

        services.create_queue("plain")
        services.create_fifo_queue("ordered")
        note(f"admin: filling {number:,} jobs")
        with connections["default"].cursor() as cursor:
            cursor.execute(FILL, {"n": number})
            for (index,) in cursor.execute(RANGES).fetchall():
                cursor.execute(SUMMARIZE, [index])
            cursor.execute("ANALYZE jobqueue_job")
        with override_settings(ALLOWED_HOSTS=["testserver"]):
            client = Client()
            client.force_login(User.objects.create_superuser("bench", password="x"))
            blocked = Job.objects.filter(state="failed", queue="ordered")[:1].get()
            waiting = Job.objects.filter(queue="ordered", state="created", hold="lane")[:1].get()
            early = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() - number * 0.4))
            pages = {name: path.format(half=number // 2, early=early) for name, path in LISTS.items()}
            pages |= {"job that blocks": f"job/{blocked.pk}/change/", "job that waits": f"job/{waiting.pk}/change/"}
            operation = begin_operation("retry", selection={"model": "job", "query": "state=dead"}, operator="bench")
            pages["operation"] = f"operation/{operation.pk}/change/"
            return [_row(client, name, f"/admin/jobqueue/{path}", runs) for name, path in pages.items()]


def _row(client: Any, name: str, address: str, runs: int) -> Row:
    def get() -> None:
        response = client.get(address)
        if response.status_code != 200:
            raise AssertionError(f"{address}: {response.status_code}")

    get()  # what is compiled and cached once is not counted
    times = [timed(get) * 1000 for _ in range(max(3, runs))]
    row = Row(f"admin: {name}", statistics.median(times), BAR_MS, 1.0, "ms", at_least=False, runs=times)
    note(f"  {name}: {row.ours:.0f} ms")
    return row
