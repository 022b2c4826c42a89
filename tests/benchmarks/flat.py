"""Whether a fetch and a finish cost the same beside a million other jobs as beside none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.lab import DATA, Row, interleaved, laboratory, medians, note, timed

BATCH = 100
BAR = 1.3
LANES = 1_000


@dataclass
class Scene:
    """What lies beside the jobs that are fetched. Each has a database of its own, so that runs can interleave."""

    name: str
    title: str
    base: str
    fill: str = ""  # SQL with %(n)s
    queue: str = "plain"
    tags: list[str] = field(default_factory=list)
    fresh: bool = True  # whether jobs to fetch are sent anew, or are those that wait


_ROWS = "FROM generate_series(1, %(n)s) i"
_COLUMNS = "id, queue_id, policy, singleton_key, state, hold, start_after, finalized_at, tags, data"
_DATA = """'{"n": 1, "text": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'"""


def _insert(queue: str, policy: str, key: str, state: str, hold: str, rest: str = "") -> str:
    start = "statement_timestamp() + interval '30 days'" if hold == "'until'" else "statement_timestamp()"
    final = "statement_timestamp()" if state in ("'completed'", "'failed'") else "NULL"
    return (
        f"INSERT INTO jobqueue_job ({_COLUMNS}) SELECT gen_random_uuid(), '{queue}', '{policy}', {key}, {state}, "
        f"{hold}, {start}, {final}, {rest or 'ARRAY[]::text[]'}, {_DATA}::jsonb {_ROWS};"
    )


_LANE = f"'k' || i %% {LANES}"
SCENES = [
    Scene("a_plain", "nothing else", "a_plain"),
    Scene("a_fifo", "nothing else, ordered", "a_fifo", queue="ordered"),
    Scene("a_tags", "nothing else, by tag", "a_tags", tags=["red"]),
    Scene("b_plain", "{n} waiting", "a_plain", _insert("plain", "standard", "''", "'created'", "NULL"), fresh=False),
    Scene("c_plain", "{n} deferred", "a_plain", _insert("plain", "standard", "''", "'created'", "'until'")),
    Scene("c_fifo", "{n} deferred, ordered", "a_fifo",
          _insert("ordered", "key_strict_fifo", _LANE, "'created'", "'until'"), queue="ordered"),
    Scene("d_fifo", f"{{n}} blocked behind {LANES:,} failed keys", "a_fifo",
          _insert("ordered", "key_strict_fifo", "'k' || i", "'failed'", "NULL").replace("%(n)s", str(LANES))
          + _insert("ordered", "key_strict_fifo", _LANE, "'created'", "'lane'"), queue="ordered"),
    Scene("e_plain", "{n} finished", "a_plain", _insert("plain", "standard", "''", "'completed'", "NULL")),
    Scene("e_fifo", "{n} finished, ordered", "a_fifo",
          _insert("ordered", "key_strict_fifo", _LANE, "'completed'", "NULL"), queue="ordered"),
    Scene("f_tags", "{n} waiting with other tags", "a_tags",
          _insert("plain", "standard", "''", "'created'", "NULL", "ARRAY['blue', 'n' || i %% 50]"), tags=["red"]),
]  # fmt: skip


def measure(runs: int, scale: float) -> list[Row]:
    """Each scene beside its own base, right after it was filled: a server's memory holds one million rows, not six."""
    n = int(1_000_000 * scale)
    found: list[Row] = []
    with laboratory([scene.name for scene in SCENES]):
        bases = {scene.name: scene for scene in SCENES if scene.base == scene.name}
        for scene in bases.values():
            _prepare(scene, 0)
        for scene in SCENES:
            if scene.name not in bases:
                _prepare(scene, n)
                found += _compared(scene, bases[scene.base], max(runs, 5) * 3, n)
    return found


def _compared(scene: Scene, base: Scene, runs: int, n: int) -> list[Row]:
    fetches: dict[str, list[float]] = {scene.name: [], base.name: []}
    completes: dict[str, list[float]] = {scene.name: [], base.name: []}
    for one in (base, scene):  # once unmeasured: caches and plans
        _run(one)
    note("flat: fetching and completing 100, in milliseconds")
    # A batch takes milliseconds: more runs cost nothing and steady the median.
    interleaved(runs, {one.name: _recording(one, fetches, completes) for one in (base, scene)})
    title = scene.title.format(n=f"{n:,}")
    rows = []
    for what, times in (("fetch", fetches), ("complete", completes)):
        middle = medians(times)
        rows.append(
            Row(f"{what} 100: {title}", middle[scene.name], middle[base.name], BAR, "ms", False, times[scene.name])
        )
    return rows


def _recording(scene: Scene, fetches: dict[str, list[float]], completes: dict[str, list[float]]) -> Callable[[], float]:
    def work() -> float:
        fetch, complete = _run(scene)
        fetches[scene.name].append(fetch)
        completes[scene.name].append(complete)
        return fetch + complete

    return work


def _prepare(scene: Scene, n: int) -> None:
    from django.db import connections

    from django_jobqueue import services

    services.create_queue("plain", using=scene.name)
    services.create_fifo_queue("ordered", using=scene.name)
    start = time.perf_counter()
    with connections[scene.name].cursor() as cursor:
        for statement in filter(None, scene.fill.split(";")):
            cursor.execute(statement, {"n": n})
        cursor.execute("VACUUM ANALYZE jobqueue_job")
    note(f"flat: filled {scene.name} in {time.perf_counter() - start:.0f} s")


def _run(scene: Scene) -> tuple[float, float]:
    from django_jobqueue import services
    from django_jobqueue.models import Job

    if scene.fresh:
        tags = scene.tags
        items: list[services.Item] = [
            {"data": DATA, "singleton_key": f"free{i}" if scene.queue == "ordered" else None, "tags": tags}
            for i in range(BATCH)
        ]
        services.send_many(scene.queue, items, using=scene.name)
    jobs: list[Job] = []

    def fetch() -> None:
        jobs.extend(services.fetch(scene.queue, BATCH, tags=scene.tags, using=scene.name))

    def complete() -> Any:
        return services.finish_many([(job, None) for job in jobs], using=scene.name)

    fetched = timed(fetch) * 1000
    completed = timed(complete) * 1000
    if len(jobs) != BATCH:
        raise AssertionError(f"{scene.name}: fetched {len(jobs)} instead of {BATCH}")
    return fetched, completed
