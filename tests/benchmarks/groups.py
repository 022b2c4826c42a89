"""Grouped reads beside one statement that ranks all jobs, and of many groups beside few."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from tests.benchmarks.lab import Row, interleaved, laboratory, medians, note, timed

HEADS, MANY, FEW = "groups_heads", "groups_many", "groups_few"
BATCH = 100
RANKS_BAR = 3.0
GROUPS_BAR = 3.0
GROUPINGS = ("head", "fill", "round_robin")

# {order}: the jobs of a group sent in a row, or of all groups in turn.
_FILL = """
INSERT INTO jobqueue_job (id, queue_id, policy, group_key, state, data)
SELECT gen_random_uuid(), 'groups', 'standard', 'g' || g, 'created', '{{"n": 1}}'
FROM generate_series(1, %(groups)s) g, generate_series(1, %(size)s) n ORDER BY {order}
"""

# What PGMQ does: rank every job within its group, take those that are first and can go, lock and claim them.
_RANK = f"""
WITH ranked AS (
    SELECT id, seq, state, hold, row_number() OVER (PARTITION BY group_key ORDER BY seq) AS place FROM jobqueue_job
    WHERE queue_id = 'groups'
        AND state IN ('created', 'retry', 'unknown_retry', 'active', 'cancelling', 'failed', 'expired')),
head AS (
    SELECT id FROM ranked WHERE place = 1 AND state IN ('created', 'retry', 'unknown_retry') AND hold IS NULL
    ORDER BY seq LIMIT {BATCH}),
locked AS (
    SELECT j.id FROM jobqueue_job j JOIN head ON head.id = j.id WHERE j.queue_id = 'groups'
    ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED)
UPDATE jobqueue_job j SET state = 'active', attempt = attempt + 1, assigned_at = statement_timestamp(),
    started_at = COALESCE(started_at, statement_timestamp()),
    expire_at = statement_timestamp() + expire_in_seconds * interval '1 second'
FROM locked WHERE j.id = locked.id AND j.queue_id = 'groups'
RETURNING j.id, j.data, j.attempt
"""
_BACK = "UPDATE jobqueue_job SET state = 'created' WHERE state = 'active'"


def measure(runs: int, scale: float) -> list[Row]:
    with laboratory([HEADS, MANY, FEW]):
        heads = max(20, int(1_000 * scale))
        many, few = max(100, int(10_000 * scale)), max(10, int(100 * scale))
        found = []
        for order, title in (("g, n", "group after group"), ("n, g", "in turn")):
            _prepare(HEADS, heads, 200, order)
            _prepare(MANY, many, 20, order)
            _prepare(FEW, few, 20 * many // few, order)
            found += _beside_ranking(runs, heads, title)
            found += _many_beside_few(runs, many, few, title)
        return found


def _prepare(using: str, groups: int, size: int, order: str) -> None:
    from django.db import connections

    from django_jobqueue import services

    services.create_queue("groups", using=using)
    start = time.perf_counter()
    with connections[using].cursor() as cursor:
        cursor.execute("TRUNCATE jobqueue_job")
        cursor.execute(_FILL.format(order=order), {"groups": groups, "size": size})
        cursor.execute("VACUUM ANALYZE jobqueue_job")
    note(f"groups: filled {using} in {time.perf_counter() - start:.0f} s")


def _milliseconds(using: str, work: Callable[[], int], expected: int) -> float:
    from django.db import connections

    counts: list[int] = []
    taken = timed(lambda: counts.append(work())) * 1000
    with connections[using].cursor() as cursor:
        cursor.execute(_BACK)
    if counts != [expected]:
        raise AssertionError(f"{using}: fetched {counts[0]} instead of {expected}")
    return taken


def _fetch(using: str, grouping: str) -> int:
    from django_jobqueue import services

    return len(services.fetch("groups", BATCH, grouping=grouping, using=using))


def _rank() -> int:
    from django.db import connections

    with connections[HEADS].cursor() as cursor:
        cursor.execute(_RANK)
        return len(cursor.fetchall())


def _beside_ranking(runs: int, groups: int, title: str) -> list[Row]:
    expected = min(BATCH, groups)
    works: dict[str, Callable[[], float]] = {
        "head": partial(_milliseconds, HEADS, partial(_fetch, HEADS, "head"), expected),
        "ranking": partial(_milliseconds, HEADS, _rank, expected),
    }
    note(f"groups: head of {expected} among {groups:,} groups of 200, sent {title}, in milliseconds")
    measured = interleaved(runs * 3, works)
    middle = medians(measured)
    speed = {name: 1000 / value for name, value in middle.items()}
    name = f"head of {expected}: {groups:,} groups of 200, sent {title}, beside ranking"
    return [Row(name, speed["head"], speed["ranking"], RANKS_BAR, "reads/s", runs=measured["head"])]


def _many_beside_few(runs: int, many: int, few: int, title: str) -> list[Row]:
    found = []
    for grouping in GROUPINGS:
        works: dict[str, Callable[[], float]] = {
            name: partial(
                _milliseconds,
                name,
                partial(_fetch, name, grouping),
                min(BATCH, groups) if grouping == "head" else BATCH,
            )
            for name, groups in ((MANY, many), (FEW, few))
        }
        note(f"groups: {grouping} of {BATCH} from {many:,} groups and from {few:,}, sent {title}, in milliseconds")
        measured = interleaved(runs * 3, works)
        middle = medians(measured)
        name = f"{grouping} of {BATCH}: {many:,} groups beside {few:,}, as many jobs, sent {title}"
        found.append(Row(name, middle[MANY], middle[FEW], GROUPS_BAR, "ms", False, measured[MANY]))
    return found
