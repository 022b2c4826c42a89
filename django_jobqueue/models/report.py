from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..expressions import StatementTimestamp


class Report(models.Model):
    """A page that ``jobs analyze`` created: statistics, keys and fingerprints, but no data of jobs."""

    created_at = models.DateTimeField(_("created at"), db_default=StatementTimestamp(), editable=False)
    jobs = models.PositiveBigIntegerField(_("jobs"), editable=False)
    queues = models.TextField(_("queues"), blank=True, default="", editable=False)  # empty: all queues
    page = models.TextField(_("page"), editable=False)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["-pk"]
        default_permissions = ("view",)
        verbose_name = _("report")
        verbose_name_plural = _("reports")

    def __str__(self) -> str:
        return f"{self.created_at:%Y-%m-%d %H:%M}"
