from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..postgresql import ListField


class QueueTotal(models.Model):
    """The sum of all minutes of a queue, including deleted minutes, so that counters never decrease."""

    queue = models.OneToOneField(
        "jobqueue.Queue",
        verbose_name=_("queue"),
        primary_key=True,
        on_delete=models.CASCADE,
        db_constraint=False,
        related_name="total",
    )
    sent = models.PositiveBigIntegerField(_("sent"), db_default=0)
    started = models.PositiveBigIntegerField(_("started"), db_default=0)
    completed = models.PositiveBigIntegerField(_("completed"), db_default=0)
    failed = models.PositiveBigIntegerField(_("failed"), db_default=0)
    retried = models.PositiveBigIntegerField(_("retried"), db_default=0)
    waited = ListField(models.BigIntegerField(), verbose_name=_("waited"), default=list, blank=True)
    ran = ListField(models.BigIntegerField(), verbose_name=_("ran"), default=list, blank=True)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["queue"]
        verbose_name = _("total of a queue")
        verbose_name_plural = _("totals of queues")

    def __str__(self) -> str:
        return self.queue_id
