from __future__ import annotations

from typing import ClassVar

from django.db import models

from django_jobqueue.identifiers import uuid7


class Customer(models.Model):
    name = models.CharField(max_length=100, unique=True)
    placed = models.PositiveIntegerField(default=0)  # orders; the number of the last one
    shipped = models.PositiveIntegerField(default=0)  # orders, also those whose rows were deleted

    objects: ClassVar[models.Manager[Customer]] = models.Manager()

    class Meta:
        ordering: ClassVar = ["pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def key(self) -> str:
        """The singleton key of the customer's jobs."""
        return f"customer-{self.name.lower()}"


class Order(models.Model):
    class Status(models.TextChoices):
        PLACED = "placed"
        SHIPPED = "shipped"
        REFUNDED = "refunded"

    customer = models.ForeignKey(Customer, on_delete=models.CASCADE, related_name="orders")
    number = models.PositiveIntegerField()  # counts per customer
    item = models.CharField(max_length=100)
    card = models.CharField(max_length=20, default="valid")
    address = models.CharField(max_length=100, default="known")
    status = models.CharField(max_length=10, choices=Status, default=Status.PLACED)
    job_id = models.UUIDField(default=uuid7, editable=False)  # of the job that ships it

    objects: ClassVar[models.Manager[Order]] = models.Manager()

    class Meta:
        ordering: ClassVar = ["pk"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["customer", "number"], name="shop_order_numbered_per_customer")
        ]

    def __str__(self) -> str:
        return f"{self.customer} #{self.number} ({self.item})"
