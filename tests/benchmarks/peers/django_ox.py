"""django-ox: bulk send by ``enqueue_many``."""

from __future__ import annotations

import django
from django.core.management import call_command
from django.db import connection

django.setup()

from django.tasks import task  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from django_ox.bulk import enqueue_many  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

from tests.benchmarks.marks import mark  # noqa: E402
from tests.benchmarks.peers.peer import TEXT  # noqa: E402


@task  # type: ignore[untyped-decorator, unused-ignore]
def bench(n: int, text: str) -> None:
    mark(n)


def install() -> None:
    call_command("migrate", verbosity=0)


def empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_ox_oxtask CASCADE")


def send_each(numbers: range) -> None:
    for n in numbers:
        bench.enqueue(n=n, text=TEXT)


def send_bulk(numbers: range) -> None:
    enqueue_many(bench, [((), {"n": n, "text": TEXT}) for n in numbers])
