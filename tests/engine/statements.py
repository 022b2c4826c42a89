"""Running one statement of the engine, and rows that only one of its conditions leaves out."""

from __future__ import annotations

from typing import Any

from django.db import connection

from django_jobqueue.engine.transactions import at, rows_of
from django_jobqueue.models import Job, Queue
from django_jobqueue.partitions import DEFAULT
from django_jobqueue.states import Hold
from tests.factories import JobFactory
from tests.past import rewrite

CLAIM: dict[str, Any] = {"worker": "w", "incarnation": None, "number": 7, "lease": None, "skip_names": []}


def ask(queue: Queue, statement: str, **params: Any) -> list[tuple[Any, ...]]:
    return rows_of("default", at(DEFAULT, statement, ("id",)), {"queue": queue.name, "skip_names": [], **params})


def held(queue: Queue, **options: Any) -> Job:
    """A job with the hold of one that is not due."""
    return JobFactory(queue=queue, hold=Hold.UNTIL, **options)


def place_of(job: Job) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT ctid::text FROM jobqueue_job WHERE id = %s", [job.pk])
        (place,) = cursor.fetchone()
    return str(place)


def turned_round(*jobs: Job) -> None:
    """Lay the rows in the opposite order, and have the table read as they lie: so only the statement orders them."""
    for job in reversed(jobs):
        rewrite(job, note="moved")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off")
