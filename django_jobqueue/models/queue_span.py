from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..postgresql import ListField


class QueueSpan(models.Model):
    """Statistics of ten minutes of one queue, or of all queues if it has none: the sum of their minutes, for charts.

    ``waiting`` and ``blocked_keys`` are those of the minute that had most.
    """

    queue = models.ForeignKey(
        "jobqueue.Queue",
        verbose_name=_("queue"),
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="spans",
    )
    begins_at = models.DateTimeField(_("begins at"))
    sent = models.PositiveBigIntegerField(_("sent"), db_default=0)
    started = models.PositiveBigIntegerField(_("started"), db_default=0)
    completed = models.PositiveBigIntegerField(_("completed"), db_default=0)
    failed = models.PositiveBigIntegerField(_("failed"), db_default=0)
    retried = models.PositiveBigIntegerField(_("retried"), db_default=0)
    waiting = models.PositiveBigIntegerField(_("most waiting"), null=True, blank=True)
    blocked_keys = models.PositiveBigIntegerField(_("most blocked keys"), null=True, blank=True)
    waited = ListField(models.BigIntegerField(), verbose_name=_("waited"), default=list, blank=True)
    ran = ListField(models.BigIntegerField(), verbose_name=_("ran"), default=list, blank=True)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["-begins_at", "queue"]
        verbose_name = _("ten minutes of a queue")
        verbose_name_plural = _("ten minutes of queues")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["queue", "begins_at"], name="jobqueue_queue_span_once", nulls_distinct=False
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue_id or 'all queues'} {self.begins_at}"
