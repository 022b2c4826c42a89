"""What customers do, and what the shop decides about an order that failed. Each change is one transaction."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F

from django_jobqueue import services

from .jobs import ship_order
from .models import Customer, Order

ITEMS = ("tea", "a kettle", "two cups", "honey", "a teapot", "sugar")
BEHIND = 4  # orders that wait behind one whose card was broken
OPERATOR = "the shop's page"


def place_order(customer: Customer, item: str, **details: str) -> Order:
    """Store an order and the job that ships it in one transaction: either both are stored or neither is."""
    with transaction.atomic():
        # The update locks the customer's row, so that numbers and jobs of one customer have the same order.
        Customer.objects.filter(pk=customer.pk).update(placed=F("placed") + 1)
        customer.refresh_from_db(fields=["placed"])
        order = Order.objects.create(customer=customer, number=customer.placed, item=item, **details)
        ship_order.using(singleton_key=customer.key, id=order.job_id).send(order_id=order.pk)
    return order


def break_card(customer: Customer) -> Order:
    """Let the card of the customer's next order expire, and place some orders behind it."""
    with transaction.atomic():
        order = Order.objects.select_for_update().filter(customer=customer, status=Order.Status.PLACED).first()
        if order is None:
            order = place_order(customer, ITEMS[0], card="expired")
        else:
            Order.objects.filter(pk=order.pk).update(card="expired")
        waiting = Order.objects.filter(customer=customer, status=Order.Status.PLACED, pk__gt=order.pk).count()
        for item in ITEMS[: max(0, BEHIND - waiting)]:
            place_order(customer, item)
    return order


def skip_order(order: Order, reason: str) -> None:
    """Refund an order that failed for good, and skip its job, so that the orders behind it are shipped."""
    with transaction.atomic():
        services.skip(order.job_id, reason=reason, operator=OPERATOR)
        Order.objects.filter(pk=order.pk).update(status=Order.Status.REFUNDED)


def retry_order(order: Order) -> None:
    """Give the job of an order that failed for good another card and another attempt, before the orders behind it."""
    data = {"order_id": order.pk, "card": "new"}
    services.retry(order.job_id, data=data, operator=OPERATOR, reason="the customer gave another card")
