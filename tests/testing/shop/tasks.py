from __future__ import annotations

from django_jobqueue.tasks import task


@task(queue_name="shop-mails")
def add(a: int, b: int) -> int:
    return a + b
