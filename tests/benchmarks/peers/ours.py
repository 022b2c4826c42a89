"""Ourselves, in the same manner as the others: ``@job`` handlers and ``manage.py runjobs``."""

from __future__ import annotations

import django
from django.db import connection

django.setup()

from django_jobqueue import services  # noqa: E402
from tests.benchmarks.jobs import PLAIN, plain  # noqa: E402
from tests.benchmarks.peers.peer import TEXT  # noqa: E402


def install() -> None:
    services.create_queue(PLAIN)  # the tables come with the database


def empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobqueue_job")


def send_each(numbers: range) -> None:
    for n in numbers:
        plain.send(n=n, text=TEXT)


def send_bulk(numbers: range) -> None:
    item = plain.using().item
    services.send_many(PLAIN, [item(n=n, text=TEXT) for n in numbers])
