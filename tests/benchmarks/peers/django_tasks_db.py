"""django-tasks-db: one task at a time and no bulk send, so many are sent in one transaction."""

from __future__ import annotations

import django
from django.core.management import call_command
from django.db import connection, transaction

django.setup()

from django.tasks import task  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from tests.benchmarks.marks import mark  # noqa: E402
from tests.benchmarks.peers.peer import TEXT  # noqa: E402


@task  # type: ignore[untyped-decorator, unused-ignore]
def bench(n: int, text: str) -> None:
    mark(n)


def install() -> None:
    call_command("migrate", verbosity=0)


def empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_tasks_database_dbtaskresult CASCADE")


def send_each(numbers: range) -> None:
    for n in numbers:
        bench.enqueue(n=n, text=TEXT)


def send_bulk(numbers: range) -> None:
    with transaction.atomic():
        send_each(numbers)
