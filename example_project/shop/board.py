"""What the shop's page shows: the orders of each customer in their lane, and the throughput. Three statements."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from typing import Any

from django.db.models import F, Q

from django_jobqueue.expressions import StatementTimestamp
from django_jobqueue.models import Job
from django_jobqueue.states import JobState

from .models import Customer, Order

SHOWN = 16  # the last orders of each customer; unfinished orders are always shown
SECONDS = 10  # over which the throughput is measured
STAGES = {
    JobState.CREATED: "waiting",
    JobState.ACTIVE: "running",
    JobState.CANCELLING: "running",
    JobState.RETRY: "retrying",
    JobState.UNKNOWN_RETRY: "retrying",
    JobState.COMPLETED: "shipped",
    JobState.FAILED: "failed",
    JobState.EXPIRED: "failed",
}


def board() -> dict[str, Any]:
    """The lanes, the number of all shipped orders, and the jobs per second of all queues."""
    shown = Q(status=Order.Status.PLACED) | Q(number__gt=F("customer__placed") - SHOWN)
    orders = list(Order.objects.filter(shown).select_related("customer").order_by("customer", "number"))
    # The jobs are read after the orders, so a job may be ahead of its order, but never behind.
    ids = [order.job_id for order in orders if order.status == Order.Status.PLACED]
    jobs = Job.objects.in_queue("orders").filter(pk__in=ids).only("state", "error").in_bulk()
    since = StatementTimestamp() - timedelta(seconds=SECONDS)
    completed = Job.objects.in_state(JobState.COMPLETED).filter(finalized_at__gt=since).count()
    lanes = [list(lane) for _, lane in groupby(orders, key=lambda order: order.customer.pk)]
    return {
        "lanes": [_lane(lane[0].customer, lane, jobs) for lane in lanes],
        "shipped": sum(lane[0].customer.shipped for lane in lanes),
        "per_second": completed / SECONDS,
    }


def _lane(customer: Customer, orders: list[Order], jobs: dict[Any, Job]) -> dict[str, Any]:
    return {
        "customer": customer.pk,
        "name": customer.name,
        "orders": [_shown(order, jobs.get(order.job_id)) for order in orders],
    }


def _shown(order: Order, job: Job | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "number": order.number,
        "item": order.item,
        "job": order.job_id,
        "stage": _stage(order, job),
    }
    if job is not None and facts["stage"] == "failed":
        facts["error"] = summary(job.error)
    return facts


def _stage(order: Order, job: Job | None) -> str:
    if order.status == Order.Status.SHIPPED:
        return "shipped"
    # An order whose job was skipped, cancelled or deleted is refunded by ``sample.refund_ended``.
    return "skipped" if job is None else STAGES.get(JobState(job.state), "skipped")


def summary(error: str) -> str:
    """The message of the exception: the last line of its traceback, without the name of its class."""
    return (error.strip().splitlines() or [""])[-1].rpartition("ShopError: ")[2]
