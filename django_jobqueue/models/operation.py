from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..expressions import StatementTimestamp
from ..identifiers import uuid7
from ..options import MAX_SCHEDULE_NAME
from ..postgresql import ListField
from ..querysets import OperationQuerySet
from ..text import MAX_QUEUE_NAME


class Operation(models.Model):
    """An act of an operator: the verb, its object, the operator, the reason and the progress.

    A trigger of the table refuses to change who did what, when and why, to lower a counter, to change a record that has
    ended, and to delete a record in less than a year. The migration has its text.
    """

    class State(models.TextChoices):
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        STOPPED = "stopped", _("stopped")

    id = models.UUIDField(_("id"), primary_key=True, default=uuid7, editable=False)
    verb = models.CharField(_("verb"), max_length=40)
    operator = models.CharField(_("operator"), max_length=255, blank=True, db_default="")
    reason = models.TextField(_("reason"), blank=True, db_default="")
    queue = models.CharField(_("queue"), max_length=MAX_QUEUE_NAME, blank=True, db_default="")
    schedule = models.CharField(_("schedule"), max_length=MAX_SCHEDULE_NAME, blank=True, db_default="")
    state = models.CharField(_("state"), max_length=10, choices=State, db_default=State.DONE)
    selection = models.JSONField(_("selection"), default=dict, blank=True)  # the filters, or the ids
    snapshot = models.TextField(
        _("snapshot of the confirmation"), blank=True, db_default=""
    )  # of what the operator was shown
    # Of the page on which it was confirmed: that page acts only once.
    confirmation = models.UUIDField(_("confirmation"), null=True, blank=True, unique=True, editable=False)
    cursor = models.JSONField(_("progress"), null=True, blank=True)
    moved = models.PositiveBigIntegerField(_("moved"), db_default=0)
    refused = models.PositiveBigIntegerField(_("refused"), db_default=0)
    details = models.JSONField(_("details"), default=dict, blank=True)
    started_at = models.DateTimeField(_("started at"), db_default=StatementTimestamp())
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    objects = OperationQuerySet.as_manager()

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["-started_at"]
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        indexes: ClassVar = [
            # Every housekeeping process asks every few seconds which operations are to be continued.
            models.Index(fields=["id"], condition=models.Q(state="running"), name="jobqueue_operation_running"),
            models.Index(fields=["queue", "id"], condition=~models.Q(queue=""), name="jobqueue_operation_of_queue"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} {self.started_at:%Y-%m-%d %H:%M}"


class OperationBatch(models.Model):
    """The jobs that an operation changed in one step: one row for up to 500 jobs, because it may change millions."""

    id = models.BigAutoField(primary_key=True)
    operation = models.ForeignKey(
        Operation, on_delete=models.CASCADE, db_constraint=False, related_name="batches", verbose_name=_("operation")
    )
    # The ids of jobs are in the order of time, so these two find the batches that may have a job without reading them.
    first_id = models.UUIDField(_("smallest id"))
    last_id = models.UUIDField(_("largest id"))
    # The jobs' sequence numbers, by which lists are read; null if the jobs were deleted.
    first_seq = models.BigIntegerField(_("smallest sequence number"), null=True)
    last_seq = models.BigIntegerField(_("largest sequence number"), null=True)
    ids = ListField(models.UUIDField(), verbose_name=_("jobs"))

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        verbose_name = _("batch of an operation")
        verbose_name_plural = _("batches of operations")
        default_permissions: ClassVar = ()

    def __str__(self) -> str:
        return f"{len(self.ids)} jobs of {self.operation_id}"
