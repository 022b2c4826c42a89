"""The handlers of the shop. ``manage.py runjobs`` finds these functions by their decorator.

A handler may run again after a crash, so each can be repeated without doing its work twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

from django.db import transaction
from django.db.models import Count, F

from django_jobqueue.handlers import CancelJob, JobContext, job

from .models import Customer, Order

PACKING_SECONDS = float(os.environ.get("SHOP_PACKING_SECONDS", "0"))  # of an order, on average


class ShopError(Exception):
    """An error that an operator must look at."""


@job(queue="orders", name="ship_order", takes_context=True)
def ship_order(context: JobContext, order_id: int, card: str | None = None) -> dict[str, str]:
    """Pack the order, check the card and the address, and ship. The orders of a customer are shipped in order."""
    if context.attempt == 1:
        time.sleep(PACKING_SECONDS * random.uniform(0.6, 1.4))
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        if (card or order.card) == "expired":
            raise ShopError("the card has expired")
        if order.address == "unknown":
            raise ShopError("the address does not exist")
        if order.status == Order.Status.PLACED:
            ship(order)
    return {"shipped": order.item}


def ship(order: Order) -> None:
    order.status = Order.Status.SHIPPED
    order.save(update_fields=["status"])
    Customer.objects.filter(pk=order.customer.pk).update(shipped=F("shipped") + 1)
    send_email.send(to=order.customer.name, text=f"on its way: {order.item}")


@job(queue="payments", name="take_payment", singleton_key=lambda customer, **_: f"customer-{customer.lower()}")
def take_payment(customer: str, amount: int) -> dict[str, int]:
    """Take a payment. The payments of a customer are taken in order; a refused one blocks the payments behind it."""
    if amount > 95:
        raise ShopError(f"the bank refused {amount} €")
    return {"paid": amount}


@job(queue="emails", name="send_email", takes_context=True)
def send_email(context: JobContext, to: str, text: str) -> dict[str, str]:
    """Send a mail. Its job is stored in the same transaction as the shipped order. The mail server sometimes fails."""
    if to.endswith("@slow.example") and context.attempt < 3:
        raise ConnectionError("the mail server is busy")
    if to.endswith("@nowhere.example"):
        raise ConnectionError("there is no such host")  # after the last retry, a copy is stored in emails-dead
    return {"sent": text, "to": to}


@job(queue="stock-report", name="stock_report", on_duplicate="ignore")
def stock_report() -> dict[str, int]:
    """Count the orders of each item. A schedule sends this job every night."""
    counted = Order.objects.order_by("item").values_list("item").annotate(number=Count("pk"))
    return dict(counted)


@job(queue="rates", name="fetch_rates")
async def fetch_rates(currencies: list[str]) -> dict[str, float]:
    """An async handler, which waits as if for another server. One process can run a hundred of them at once."""
    await asyncio.sleep(0.5)
    return {currency: round(1 + len(currency) / 10, 2) for currency in currencies}


@job(queue="exports", name="export_orders", takes_context=True, retry_limit=0)
def export_orders(context: JobContext, rows: int = 100) -> dict[str, int]:
    """Work for five seconds, and report the progress."""
    for row in range(rows):
        if context.cancelled:
            raise CancelJob(f"stopped after {row} rows")
        time.sleep(0.05)
        context.progress((row + 1) / rows, f"row {row + 1} of {rows}")
    return {"rows": rows}


@job(queue="accidents", name="kill_worker", takes_context=True, retry_limit=1, on_duplicate="ignore")
def kill_worker(context: JobContext) -> dict[str, str]:
    """Kill the process that runs this handler, as the kernel does if memory is short. The second attempt succeeds."""
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"recovered": "its jobs run again, in another process"}
