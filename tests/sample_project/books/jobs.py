from django.core.mail import send_mail

from django_jobqueue import job

from .models import Book, Order


@job(queue="orders", singleton_key=lambda customer, **_: customer, atomic=True)
def ship(customer: str, order: int, express: bool = False) -> str:
    shipped = Order.objects.get(pk=order)
    if shipped.title == "a book that is out of print":
        raise LookupError(f"{shipped.title} cannot be shipped")
    shipped.state = "express" if express else "shipped"
    shipped.save()
    return shipped.state


@job(queue="mails")
def confirm(order: int) -> None:
    customer = Order.objects.get(pk=order).customer
    send_mail("Your order", f"Order {order} has arrived.", "shop@example.com", [f"{customer}@example.com"])


@job
def index_books() -> int:
    return Book.objects.filter(indexed=False).update(indexed=True)
