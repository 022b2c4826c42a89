"""A process that fills the database of one source tree with that tree's own code, as it is told on its standard input.

``python -m tests.benchmarks.filling`` answers each line, a JSON list of a verb and its arguments, with an empty line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import django
from django.db import connection

django.setup()

from django_jobqueue import services  # noqa: E402
from tests.benchmarks.jobs import ORDERED, PLAIN  # noqa: E402
from tests.benchmarks.peers.peer import TEXT  # noqa: E402

BATCH = 10_000


def install() -> None:
    services.create_queue(PLAIN)
    services.create_fifo_queue(ORDERED)
    _execute("CREATE TABLE bench_effect (n int NOT NULL)")
    _execute("VACUUM ANALYZE")


def fill(queue: str, name: str, start: int, stop: int, keys: int) -> None:
    """Pause the queue, and store nothing but these jobs, with fresh statistics."""
    services.pause(queue)
    _execute("TRUNCATE jobqueue_job, bench_effect")
    for first in range(start, stop, BATCH):
        items: list[services.Item] = [
            {"data": {"n": n, "text": TEXT}, "name": name, "singleton_key": f"key{n % keys}" if keys else None}
            for n in range(first, min(first + BATCH, stop))
        ]
        services.send_many(queue, items)
    _execute("VACUUM ANALYZE jobqueue_job, bench_effect")
    _execute("CHECKPOINT")  # so that every run writes the first images of its pages


def send_each(queue: str, name: str, number: int) -> None:
    """One after the other, each committed."""
    for n in range(number):
        services.send(queue, {"n": n, "text": TEXT}, name=name)


def resume(queue: str) -> None:
    services.resume(queue)


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


VERBS: dict[str, Callable[..., None]] = {"install": install, "fill": fill, "send_each": send_each, "resume": resume}


def main() -> None:
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        VERBS[verb](*arguments)
        print(flush=True)


if __name__ == "__main__":
    main()
