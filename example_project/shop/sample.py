"""Sample data: customers who keep ordering, and some orders that fail. The amount of data is limited."""

from __future__ import annotations

import random

from django_jobqueue import services
from django_jobqueue.models import Job

from .jobs import send_email, take_payment
from .models import Customer, Order
from .orders import place_order
from .tasks import thank

CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gita", "Hugo", "Iris", "Jon", "Kaya", "Lev")
ITEMS = ("tea", "a kettle", "two cups", "honey", "a teapot", "sugar")
MOST_BLOCKED = 3  # customers whose key may be blocked at the same time
MOST_WAITING = 25  # jobs of one customer in one queue
MOST_ORDERS = 2_000


def fill() -> None:
    """Create the customers and the first orders of a new shop."""
    for name in CUSTOMERS:
        Customer.objects.get_or_create(name=name)
    for _ in range(60):
        step()
    stubborn = Customer.objects.get(name="Ben")
    place_order(stubborn, "a kettle", card="expired")
    for item in ITEMS[:4]:
        place_order(stubborn, item)
    take_payment.send(customer="Cleo", amount=99)
    for amount in (10, 20):
        take_payment.send(customer="Cleo", amount=amount)


def step() -> None:
    """Place one order, and sometimes send a payment, a mail or a task."""
    customer = Customer.objects.order_by("?").first()
    if customer is None or _waiting("orders", customer.key) >= MOST_WAITING:
        return
    trouble = random.random() < 0.05 and len(services.blocked_keys("orders")) < MOST_BLOCKED
    details = random.choice(({"card": "expired"}, {"address": "unknown"})) if trouble else {}
    place_order(customer, random.choice(ITEMS), **details)
    if random.random() < 0.3 and _waiting("payments", customer.key) < MOST_WAITING:
        refused = trouble and len(services.blocked_keys("payments")) < MOST_BLOCKED
        take_payment.send(customer=customer.name, amount=99 if refused else random.randint(5, 90))
    if random.random() < 0.2:
        host = random.choices(("example.com", "slow.example", "nowhere.example"), (8, 3, 1))[0]
        send_email.send(to=f"{customer.name.lower()}@{host}", text="our offers of the week")
    if random.random() < 0.1:
        thank.enqueue(customer.name, orders=Order.objects.filter(customer=customer).count())
    _forget_old()


def _waiting(queue: str, key: str) -> int:
    return Job.objects.in_queue(queue).filter(singleton_key=key).eligible().count()


def _forget_old() -> None:
    old = Order.objects.exclude(status=Order.Status.PLACED).order_by("-pk").values_list("pk", flat=True)[MOST_ORDERS:]
    if old:
        Order.objects.filter(pk__in=list(old)).delete()
