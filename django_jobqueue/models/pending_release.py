from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..expressions import StatementTimestamp
from ..text import MAX_QUEUE_NAME


class PendingRelease(models.Model):
    """A lane whose next job could not be released by the transaction that ended the job before it.

    The key or the row of the next job was locked by another transaction, or the transaction could not read the lane
    again. The row is stored in that transaction, so that every snapshot with the end of the job also has the pending
    release. The housekeeping process releases the lane and deletes the row.
    """

    queue = models.CharField(_("queue"), max_length=MAX_QUEUE_NAME)
    policy = models.CharField(_("policy"), max_length=20)
    singleton_key = models.CharField(_("singleton key"), max_length=255, db_collation="C", blank=True)
    created_at = models.DateTimeField(_("created at"), db_default=StatementTimestamp(), editable=False)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        verbose_name = _("pending release")
        verbose_name_plural = _("pending releases")
        default_permissions = ()
        indexes: ClassVar = [models.Index(fields=["queue", "singleton_key"], name="jobqueue_pending_release_lane")]

    def __str__(self) -> str:
        return f"{self.queue} {self.singleton_key}"
