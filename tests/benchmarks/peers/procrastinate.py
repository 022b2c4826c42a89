"""procrastinate: asynchronous tasks, many at once, and a pool with a connection for each."""

from __future__ import annotations

import psycopg
from procrastinate import (  # type: ignore[import-not-found, unused-ignore]
    App,
    PsycopgConnector,
    SyncPsycopgConnector,
)

from tests.benchmarks.marks import mark
from tests.benchmarks.peers.peer import TEXT

CONCURRENCY = 10

# min_size=max_size: nothing is connected while the time runs.
app = App(connector=PsycopgConnector(min_size=CONCURRENCY + 2, max_size=CONCURRENCY + 2))
_sync = App(connector=SyncPsycopgConnector(min_size=1, max_size=1))


@app.task(name="bench", queue="bench")  # type: ignore[untyped-decorator, unused-ignore]
async def bench(n: int, text: str) -> None:
    mark(n)


@_sync.task(name="bench", queue="bench")  # type: ignore[untyped-decorator, unused-ignore]
def _bench(n: int, text: str) -> None: ...


def install() -> None:
    _sync.open()
    _sync.schema_manager.apply_schema()


def empty() -> None:
    with psycopg.connect(autocommit=True) as connection:
        connection.execute("TRUNCATE procrastinate_jobs CASCADE")


def send_each(numbers: range) -> None:
    for n in numbers:
        _bench.defer(n=n, text=TEXT)


def send_bulk(numbers: range) -> None:
    _bench.batch_defer(*({"n": n, "text": TEXT} for n in numbers))
