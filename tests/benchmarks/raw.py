"""The same work by bare psycopg: the best statements we know, on our own table, without validation or models."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg

from tests.benchmarks.lab import DATA

INSERT = """
INSERT INTO jobqueue_job (id, queue_id, policy, name, priority, singleton_key, group_key, tags, data, retry_limit,
    retry_delay, retry_backoff, expire_in_seconds, retention_seconds, delete_after_seconds, delete_failed_after_seconds)
VALUES (%s, %s, 'standard', '', 0, '', '', '{}', %s, 2, 0, false, 900, 1209600, 604800, 604800)
RETURNING seq, created_at
"""
COPY = """
COPY jobqueue_job (id, queue_id, policy, name, priority, singleton_key, group_key, tags, data, hold, retry_limit,
    retry_delay, retry_backoff, retry_delay_max, expire_in_seconds, heartbeat_seconds, retention_seconds,
    delete_after_seconds, delete_failed_after_seconds) FROM STDIN
"""
NUMBER = 1  # of all claims: here no commit is lost


def insert_params() -> list[Any]:
    return [uuid4(), "plain", json.dumps(DATA)]


def copy_rows(n: int) -> list[tuple[object, ...]]:
    data = json.dumps(DATA)
    rest = (2, 0, False, None, 900, None, 1209600, 604800, 604800)
    return [(uuid4(), "plain", "standard", "", 0, "", "", [], data, None, *rest) for _ in range(n)]


def copy(connection: psycopg.Connection, rows: list[tuple[object, ...]]) -> None:
    with connection.cursor() as cursor, cursor.copy(COPY) as copying:
        for row in rows:
            copying.write_row(row)


def drain(dsn: str, batch: int, *, whole: bool = True) -> int:
    """The very statements of the verbs, or of a worker, so that what is measured is what those add to them."""
    fetch, complete, id = _statements(whole)
    done = 0
    with _connect(dsn) as connection:
        while rows := connection.execute(fetch, _claiming(batch)).fetchall():
            connection.execute(complete, _claims([row[2] for row in rows], [row[id] for row in rows]))
            done += len(rows)
    return done


def effects(dsn: str, batch: int) -> int:
    """One job after another, each fetched, done and completed in one transaction; its work is one INSERT."""
    fetch, complete, id = _statements(whole=False)
    done = 0
    with _connect(dsn) as connection:
        while True:
            with connection.transaction():
                row = connection.execute(fetch, _claiming(1)).fetchone()
                if row is None:
                    return done
                connection.execute("INSERT INTO bench_effect (n) VALUES (%s)", [done])
                connection.execute(complete, _claims([row[2]], [row[id]]))
            done += 1


WORKS: dict[str, Callable[[str, int], int]] = {
    "raw": drain,
    "raw worker": partial(drain, whole=False),
    "effects": effects,
}


def _statements(whole: bool) -> tuple[str, str, int]:
    """The fetch, the completion, and where in a fetched row the id is."""
    from django_jobqueue.engine import sql
    from django_jobqueue.engine.transactions import at
    from django_jobqueue.partitions import DEFAULT

    columns = sql.parts.CLAIMED if whole else sql.parts.NEEDED
    fetch = at(DEFAULT, sql.fetch.CLAIM_FRONT, columns)
    return fetch, at(DEFAULT, sql.finish.COMPLETE_HERE), columns.index("id") + 3


def _claiming(limit: int) -> dict[str, Any]:
    queue = {"queue": "plain", "policy": "standard", "partition": False, "skip_names": []}
    return {**queue, "limit": limit, "worker": "raw", "incarnation": None, "number": NUMBER, "lease": None}


def _claims(places: list[str], ids: list[Any]) -> dict[str, Any]:
    """Of the rows that were claimed; psycopg does not know the type of their places."""
    tids = "{" + ",".join(f'"{place}"' for place in places) + "}"
    return {"tids": tids, "ids": ids, "numbers": [NUMBER] * len(ids), "outputs": [None] * len(ids)}


def _connect(dsn: str) -> psycopg.Connection:
    connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
    connection.execute("SET enable_sort = off; SET enable_seqscan = off")
    connection.execute("SET enable_hashjoin = off; SET enable_mergejoin = off")
    return connection
