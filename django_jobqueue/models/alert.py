from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..expressions import StatementTimestamp


class Alert(models.Model):
    """A problem of which operators are told by mail or by a webhook, and what they were told of it.

    There is a row for each problem and each way to tell it, so a dead mail server does not delay the webhook.
    """

    channel = models.CharField(_("channel"), max_length=10)
    kind = models.CharField(_("kind"), max_length=10)
    name = models.CharField(_("name"), max_length=255)  # the fingerprint of the error, the queue or the schedule
    facts = models.JSONField(_("facts"), default=dict)
    latest_at = models.DateTimeField(_("became worse at"))  # for blocked keys: when the latest of them was blocked
    began_at = models.DateTimeField(_("first seen at"), db_default=StatementTimestamp())
    seen_at = models.DateTimeField(_("last seen at"), db_default=StatementTimestamp())
    over_at = models.DateTimeField(_("over since"), null=True, blank=True)
    is_told = models.BooleanField(_("is told"), db_default=False)  # whether the last message said that it lasts
    sent_at = models.DateTimeField(_("last alert at"), null=True, blank=True)
    # A process that sends a message claims its problems. If it ends before it has recorded the result, another one
    # sends the message again when the claim has expired.
    holder = models.UUIDField(_("claimed by"), null=True, blank=True)
    claimed_until = models.DateTimeField(_("claimed until"), null=True, blank=True)
    failures = models.PositiveIntegerField(_("deliveries that failed in a row"), db_default=0)
    retry_at = models.DateTimeField(_("next delivery at"), null=True, blank=True)
    error = models.TextField(_("error of the last delivery"), blank=True, db_default="")

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["channel", "kind", "name"], name="jobqueue_alert_once_per_channel"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
