"""Sample data: customers who keep ordering, and some jobs that fail. The amount of data is limited."""

from __future__ import annotations

import random

from django.db.models import Exists, F, OuterRef

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import DEAD, FINAL, JobState

from .jobs import send_email, take_payment
from .models import Customer, Order
from .orders import ITEMS, break_card, place_order
from .tasks import thank

CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gita", "Hugo")
MOST_BLOCKED = 3  # customers whose payments may be blocked at the same time
MOST_WAITING = 8  # jobs of one customer in one queue
MOST_KEPT = 100  # orders of one customer that are shipped or refunded
ENDED = FINAL - DEAD - {JobState.COMPLETED}


def open_shop() -> None:
    """Create the customers of a new shop, and block the key of one of them if no key of an order is blocked."""
    is_new = not Customer.objects.exists()
    for name in CUSTOMERS:
        Customer.objects.get_or_create(name=name)
    if is_new:
        for customer in [*Customer.objects.all()] * 2:
            place_order(customer, random.choice(ITEMS))
        for amount in (99, 10, 20):
            take_payment.send(customer="Cleo", amount=amount)
    if not services.blocked_keys("orders"):
        break_card(Customer.objects.get(name="Ben"))


def step() -> None:
    """Place one to three orders of one customer, and sometimes send a payment, a mail or a task."""
    customer = Customer.objects.order_by("?")[0]
    for _ in range(random.choices((1, 2, 3), (5, 3, 1))[0]):
        if _waiting("orders", customer.key) < MOST_WAITING:
            place_order(customer, random.choice(ITEMS))
    if random.random() < 0.1 and _waiting("payments", customer.key) < MOST_WAITING:
        refused = random.random() < 0.1 and len(services.blocked_keys("payments")) < MOST_BLOCKED
        take_payment.send(customer=customer.name, amount=99 if refused else random.randint(5, 90))
    if random.random() < 0.1:
        host = random.choices(("example.com", "slow.example", "nowhere.example"), (8, 3, 1))[0]
        send_email.send(to=f"{customer.name.lower()}@{host}", text="our offers of the week")
    if random.random() < 0.05:
        thank.enqueue(customer.name, orders=customer.placed)
    refund_ended()
    forget_old()


def refund_ended() -> None:
    """Refund orders whose jobs were skipped, cancelled or deleted in the admin or on the command line."""
    kept = Job.objects.in_queue("orders").exclude(state__in=ENDED).filter(pk=OuterRef("job_id"))
    Order.objects.filter(~Exists(kept), status=Order.Status.PLACED).update(status=Order.Status.REFUNDED)


def forget_old() -> None:
    old = Order.objects.filter(number__lte=F("customer__placed") - MOST_KEPT)
    old.exclude(status=Order.Status.PLACED).delete()


def _waiting(queue: str, key: str) -> int:
    return Job.objects.in_queue(queue).filter(singleton_key=key).eligible().count()
