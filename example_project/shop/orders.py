from __future__ import annotations

from django.db import transaction

from .jobs import ship_order
from .models import Customer, Order


def place_order(customer: Customer, item: str, **details: str) -> Order:
    """Store an order and the job that ships it in one transaction: either both are stored or neither is."""
    with transaction.atomic():
        number = Order.objects.filter(customer=customer).count() + 1
        order = Order.objects.create(customer=customer, number=number, item=item, **details)
        ship_order.using(singleton_key=customer.key).send(order_id=order.pk)
    return order
