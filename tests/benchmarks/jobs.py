"""The handlers that are measured: they do nothing but say that they ran."""

from __future__ import annotations

import time

from django.db import connection

from django_jobqueue.handlers import job
from tests.benchmarks.marks import mark

PLAIN, ORDERED = "plain", "ordered"
EFFECT = "INSERT INTO bench_effect (n) VALUES (%s)"


@job(queue=PLAIN, name="bench", default=True)
def plain(n: int, text: str) -> None:
    mark(n)


@job(queue=ORDERED, name="bench_ordered")
def ordered(n: int, text: str) -> None:
    mark(n)


@job(queue=PLAIN, name="bench_effect", atomic=True)
def effect(n: int, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(EFFECT, [n])
    mark(n)


@job(queue=ORDERED, name="bench_ordered_effect", atomic=True)
def ordered_effect(n: int, text: str) -> None:
    effect.function(n, text)


@job(queue=ORDERED, name="bench_slow")
def slow(n: int, seconds: float) -> None:
    time.sleep(seconds)
    mark(n)


@job(queue=ORDERED, name="bench_slow_effect", atomic=True)
def slow_effect(n: int, seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(EFFECT, [n])
    slow.function(n, seconds)
