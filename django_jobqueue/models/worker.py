from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..expressions import EmptyTextList, StatementTimestamp
from ..identifiers import uuid7
from ..postgresql import ListField


class Worker(models.Model):
    """A process that fetches jobs and runs handlers. Its row is an incarnation: each start creates a new one."""

    id = models.UUIDField(_("incarnation"), primary_key=True, default=uuid7, editable=False)
    name = models.CharField(_("name"), max_length=255)
    host = models.CharField(_("host"), max_length=255, blank=True, db_default="")
    pid = models.PositiveIntegerField(_("process id"), null=True, blank=True)
    queues = ListField(models.TextField(), verbose_name=_("queues"), blank=True, db_default=EmptyTextList())
    tags = ListField(models.TextField(), verbose_name=_("tags"), blank=True, db_default=EmptyTextList())
    # What it can run, by names and aliases; null if it takes jobs of every name, as a stream does. And the names of
    # the handlers that it lacks, of jobs it has met.
    handlers = ListField(models.TextField(), verbose_name=_("handlers"), null=True, blank=True)
    lacks = ListField(models.TextField(), verbose_name=_("lacks"), blank=True, db_default=EmptyTextList())
    capacity = models.PositiveIntegerField(_("capacity"), db_default=1)
    version = models.CharField(_("version"), max_length=40, blank=True, db_default="")
    has_session_lock = models.BooleanField(_("holds a session lock"), db_default=False)
    # Its own settings, by which other workers decide whether it is lost; settings may differ between workers.
    unlocked_seconds = models.FloatField(_("lost after (s), without its lock"), null=True, blank=True)
    lost_seconds = models.FloatField(_("lost after (s)"), null=True, blank=True)
    stop_grace_seconds = models.FloatField(_("grace after expiry (s)"), null=True, blank=True)
    started_at = models.DateTimeField(_("started at"), db_default=StatementTimestamp())
    heartbeat_at = models.DateTimeField(_("last heartbeat"), db_default=StatementTimestamp())
    stopping_at = models.DateTimeField(_("stopping since"), null=True, blank=True)
    stopped_at = models.DateTimeField(_("stopped at"), null=True, blank=True)
    exit_text = models.CharField(_("exit"), max_length=255, blank=True, db_default="")
    stats = models.JSONField(_("statistics"), default=dict, blank=True)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["name", "started_at"]
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        permissions: ClassVar = [("stop_worker", "Can ask workers to stop")]
        indexes: ClassVar = [
            models.Index(
                fields=["heartbeat_at"],
                name="jobqueue_worker_live",
                condition=models.Q(stopped_at=None),
            ),
        ]

    def __str__(self) -> str:
        return self.name
