from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..expressions import StatementTimestamp
from ..identifiers import uuid7
from ..text import MAX_QUEUE_NAME


class Operation(models.Model):
    """An act of an operator on many jobs: the verb, the jobs, the operator, the reason and the progress."""

    class State(models.TextChoices):
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        STOPPED = "stopped", _("stopped")

    id = models.UUIDField(_("id"), primary_key=True, default=uuid7, editable=False)
    verb = models.CharField(_("verb"), max_length=40)
    operator = models.CharField(_("operator"), max_length=255, blank=True, db_default="")
    reason = models.TextField(_("reason"), blank=True, db_default="")
    queue = models.CharField(_("queue"), max_length=MAX_QUEUE_NAME, blank=True, db_default="")
    state = models.CharField(_("state"), max_length=10, choices=State, db_default=State.DONE)
    selection = models.JSONField(_("selection"), default=dict, blank=True)  # the filters, or the ids
    snapshot = models.TextField(
        _("snapshot of the confirmation"), blank=True, db_default=""
    )  # of what the operator was shown
    cursor = models.JSONField(_("progress"), null=True, blank=True)
    moved = models.PositiveBigIntegerField(_("moved"), db_default=0)
    refused = models.PositiveBigIntegerField(_("refused"), db_default=0)
    details = models.JSONField(_("details"), default=dict, blank=True)
    started_at = models.DateTimeField(_("started at"), db_default=StatementTimestamp())
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["-started_at"]
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        indexes: ClassVar = [
            # Every housekeeping process asks every few seconds which operations are to be continued.
            models.Index(fields=["id"], condition=models.Q(state="running"), name="jobqueue_operation_running"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} {self.started_at:%Y-%m-%d %H:%M}"
