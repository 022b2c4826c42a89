"""Django's own connection pool: a worker never shares its sockets over a fork, nor starves on its size (F75)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from django.contrib.auth.models import Group

from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.waiting import until

from .conftest import FAULTS, LANES, ends, send
from .history import check
from .runner import FOLDER, QUICK, ROOT, database_dsn
from .settings import POOL, PREFIX

pytestmark = pytest.mark.django_db(transaction=True)
pytest.importorskip("psycopg_pool")

NUMBER = 100  # of each kind


def send_all() -> list[Job]:
    """Handlers with and without the database, in one transaction with their completion, and in lanes."""
    kinds = [("atomic-work", FAULTS, ""), ("plain-effect", FAULTS, ""), ("lane-work", LANES, "k{}")]
    return [
        send(name, queue=queue, **({"singleton_key": key.format(n % 7)} if key else {}))
        for n in range(NUMBER)
        for name, queue, key in kinds
    ]


def each_was_done_once(jobs: list[Job]) -> bool:
    rows = Job.objects.filter(pk__in=[job.pk for job in jobs])
    assert not rows.filter(state=JobState.FAILED).exists(), rows.filter(state=JobState.FAILED)[0].error
    return rows.filter(state=JobState.COMPLETED).count() == len(jobs)


@pytest.mark.parametrize("pool", (True, {"min_size": 1, "max_size": 2, "timeout": 2}))
def test_a_worker_leaves_the_pool_of_every_database(start, history, monkeypatch, pool):
    monkeypatch.setenv(POOL, json.dumps(pool))
    worker = start("--concurrency", "8", processes=2)

    jobs = send_all()
    until(lambda: each_was_done_once(jobs), "all are done", 60)

    assert Counter(Job.objects.values_list("attempt", "retry_count")) == {(1, 0): 3 * NUMBER}
    assert Group.objects.count() == 2 * NUMBER
    check(history, FAULTS, ordered=False)
    check(history, LANES)
    assert ends(send("look-at-pools"), JobState.COMPLETED).output == {"default": False, "other": False}
    assert worker.stop() == 0
    assert "lost connection to the database" not in worker.log


IN_PROCESS = """
import django, json; django.setup()
from django_jobqueue import handlers; handlers.autodiscover()
from django.db import connection, connections
from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.worker import work
from tests.waiting import until
from tests.faults import test_pool

def left():
    with connection.cursor() as cursor:
        cursor.execute("SELECT array(SELECT pg_listening_channels()), current_setting('statement_timeout'),"
                       " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),"
                       " pg_backend_pid()")
        return cursor.fetchone()

before = left()
connection.close()
%s
print(json.dumps([before, left(), connection.pool is not None]))
"""
WORK = """
with work(["faults", "lanes"], concurrency=8):
    jobs = test_pool.send_all()
    until(lambda: test_pool.each_was_done_once(jobs), "all are done", 60)
    connection.close()
"""
STREAM = """
with services.stream("reader", queue="faults", capacity=3) as stream:
    jobs = [test_pool.send("noop") for _ in range(9)]
    connection.close()
    done = 0
    for batch in stream:
        for job in batch:
            services.complete(job)
        connection.close()
        done += len(batch)
        if done == 9:
            break
"""


@pytest.mark.parametrize("script", (WORK, STREAM), ids=("work", "stream"))
def test_in_a_process_of_its_own_the_pool_stays_and_finds_nothing_left_behind(queues, tmp_path, script):
    """A pool of one connection: threads of a worker or a stream that took it would starve all others."""
    done = ask(IN_PROCESS % script, tmp_path, {"min_size": 1, "max_size": 1, "timeout": 3})

    before, after, has_pool = json.loads(done)
    assert before == after  # the same session, which listens to nothing, holds no lock and has no timeout
    assert has_pool
    assert not Job.objects.exclude(state=JobState.COMPLETED).exists()
    assert set(Job.objects.values_list("attempt", "retry_count")) == {(1, 0)}


def ask(script: str, folder: Any, pool: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={
            **os.environ,
            **{PREFIX + name: json.dumps(value) for name, value in QUICK.items()},
            "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
            "JOBQUEUE_TEST_DSN": database_dsn(),
            POOL: json.dumps(pool),
            FOLDER: str(folder),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


OPENED = """
import django, json; django.setup()
from django.db import connection
from django_jobqueue.engine.pools import remove_pools

connection.ensure_connection()  # as an AppConfig.ready() may do
pool = connection.pool
remove_pools()
connection.ensure_connection()
print(json.dumps([pool.closed, connection.pool is None]))
"""


def test_a_pool_that_is_open_already_is_closed(queues, tmp_path):
    """Its sockets would be shared by the fork."""
    assert json.loads(ask(OPENED, tmp_path, True)) == [True, True]
