"""A task of Django's own API. It is stored as a job, and the same workers run it."""

from __future__ import annotations

from django_jobqueue.tasks import task


@task(queue_name="emails")
def thank(customer: str, orders: int) -> str:
    return f"Thank you, {customer}, for {orders} orders!"
