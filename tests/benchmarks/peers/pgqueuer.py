"""pgqueuer: asyncpg with a pool, so that jobs are logged as done while the next are fetched, and uvloop.

Run, it is a worker as ``pgq run`` is one: that command itself fails with some versions of typer.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # type: ignore[import-not-found, unused-ignore]
import uvloop  # type: ignore[import-not-found, unused-ignore]
from pgqueuer import PgQueuer, run  # type: ignore[import-not-found, unused-ignore]
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver  # type: ignore[import-not-found, unused-ignore]
from pgqueuer.queries import Queries  # type: ignore[import-not-found, unused-ignore]

from tests.benchmarks.marks import mark
from tests.benchmarks.peers.peer import TEXT

# What is fetched and what is logged as done at once: it decides nearly everything.
BATCH_SIZE = int(os.environ.get("BENCH_BATCH_SIZE", "500"))

_loop = uvloop.new_event_loop()
_opened: Queries | None = None


@asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """What is run by a worker."""
    async with asyncpg.create_pool(min_size=4, max_size=4) as pool:
        queuer = PgQueuer(AsyncpgPoolDriver(pool))

        @queuer.entrypoint("bench")
        async def bench(job: Any) -> None:
            mark(json.loads(job.payload)["n"])

        yield queuer


def install() -> None:
    async def create() -> None:
        queries = await _queries()
        await queries.install()  # durable, as the other peers
        await queries.optimize_autovacuum()

    _run(create())


def empty() -> None:
    async def clear() -> None:
        queries = await _queries()
        await queries.clear_queue()
        await queries.clear_queue_log()

    _run(clear())


def send_each(numbers: range) -> None:
    async def send() -> None:
        queries = await _queries()
        for n in numbers:
            await queries.enqueue("bench", _payload(n))

    _run(send())


def send_bulk(numbers: range) -> None:
    async def send() -> None:
        queries = await _queries()
        count = len(numbers)
        await queries.enqueue(["bench"] * count, [_payload(n) for n in numbers], [0] * count)

    _run(send())


def _payload(n: int) -> bytes:
    return json.dumps({"n": n, "text": TEXT}).encode()


async def _queries() -> Queries:
    global _opened
    if _opened is None:
        _opened = Queries(AsyncpgDriver(await asyncpg.connect()))
    return _opened


def _run(work: Coroutine[Any, Any, None]) -> None:
    _loop.run_until_complete(work)


if __name__ == "__main__":
    uvloop.run(run(worker, batch_size=BATCH_SIZE))
