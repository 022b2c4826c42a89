from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..postgresql import ListField


class QueueMinute(models.Model):
    """Statistics of one queue and minute: counters, and logarithmic histograms of waiting and running times."""

    queue = models.ForeignKey(
        "jobqueue.Queue",
        verbose_name=_("queue"),
        on_delete=models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="minutes",
    )
    minute = models.DateTimeField(_("minute"))
    sent = models.PositiveBigIntegerField(_("sent"), db_default=0)
    started = models.PositiveBigIntegerField(_("started"), db_default=0)
    completed = models.PositiveBigIntegerField(_("completed"), db_default=0)
    failed = models.PositiveBigIntegerField(_("failed"), db_default=0)
    retried = models.PositiveBigIntegerField(_("retried"), db_default=0)
    waiting = models.PositiveBigIntegerField(_("waiting at its end"), null=True, blank=True)
    blocked_keys = models.PositiveBigIntegerField(_("blocked keys at its end"), null=True, blank=True)
    waited = ListField(models.BigIntegerField(), verbose_name=_("waited"), default=list, blank=True)
    ran = ListField(models.BigIntegerField(), verbose_name=_("ran"), default=list, blank=True)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["-minute", "queue"]
        verbose_name = _("queue minute")
        verbose_name_plural = _("queue minutes")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["queue", "minute"], name="jobqueue_queue_minute_once"),
        ]

    def __str__(self) -> str:
        return f"{self.queue_id} {self.minute}"
