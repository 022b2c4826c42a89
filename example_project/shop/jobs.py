"""What the shop does in the background. ``manage.py runjobs`` finds these functions by their decorator.

A handler may run again after a crash, so each says what is to be true and adds nothing twice.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import Count

from django_jobqueue.handlers import job

from .models import Order


class ShopError(Exception):
    """Something a person must look at."""


@job(queue="orders", name="ship_order")
def ship_order(order_id: int, card: str | None = None) -> dict[str, str]:
    """Charge the card, ship the order and write to the customer."""
    order = Order.objects.select_related("customer").get(pk=order_id)
    if (card or order.card) == "expired":
        raise ShopError("the card has expired")
    if order.address == "unknown":
        raise ShopError("the address does not exist")
    with transaction.atomic():
        if Order.objects.filter(pk=order.pk, status=Order.Status.PLACED).update(status=Order.Status.SHIPPED):
            send_email.send(to=order.customer.name, text=f"on its way: {order.item}")
    return {"shipped": order.item}


@job(queue="emails", name="send_email")
def send_email(to: str, text: str) -> dict[str, str]:
    return {"sent": text, "to": to}


@job(queue="stock-report", name="stock_report")
def stock_report() -> dict[str, int]:
    """How many of each item were ordered."""
    counted = Order.objects.order_by("item").values_list("item").annotate(number=Count("pk"))
    return dict(counted)
