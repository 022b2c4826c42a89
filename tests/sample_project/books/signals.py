from django.db.models.signals import post_save
from django.dispatch import receiver

from .jobs import confirm
from .models import Order


@receiver(post_save, sender=Order)
def confirm_new_orders(instance: Order, created: bool, **kwargs: object) -> None:
    if created:
        confirm.send(instance.pk)
