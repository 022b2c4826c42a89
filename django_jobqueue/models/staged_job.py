from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..expressions import StatementTimestamp
from ..postgresql import ListField
from ..text import MAX_QUEUE_NAME


class JobWrite(models.Model):
    """A committed write of many jobs, recorded so that repeating the write sends nothing."""

    id = models.CharField(_("write"), max_length=200, primary_key=True)
    queue = models.CharField(_("queue"), max_length=MAX_QUEUE_NAME)
    jobs = models.BigIntegerField(_("jobs"))
    committed_at = models.DateTimeField(_("committed at"), db_default=StatementTimestamp(), editable=False)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        verbose_name = _("write of jobs")
        verbose_name_plural = _("writes of jobs")

    def __str__(self) -> str:
        return self.id


class SentRow(models.Model):
    """A sent row of a file, recorded so that sending the file again does not send the row again.

    It is kept longer than the job. ``pipeline/bulk_sending.py`` describes how the id is computed.
    """

    id = models.UUIDField(primary_key=True)
    seen_at = models.DateTimeField(db_default=StatementTimestamp(), editable=False)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        verbose_name = _("row that was sent")
        verbose_name_plural = _("rows that were sent")
        default_permissions: ClassVar = []
        indexes: ClassVar = [models.Index(fields=["seen_at"], name="jobqueue_sentrow_seen")]

    def __str__(self) -> str:
        return str(self.id)


class StagedJob(models.Model):
    """A row that a Spark task has written, and that becomes a job when the whole write is committed.

    The table is unlogged and has no index but its primary key, because rows live for seconds. Most columns are texts,
    because these are fast to write; the commit converts them.
    """

    row_id = models.BigAutoField(primary_key=True)
    write = models.TextField()
    partition = models.IntegerField()
    attempt = models.BigIntegerField()
    row = models.BigIntegerField()
    number = models.BigIntegerField(null=True)  # the value that the rows are ordered by: one of these three
    real = models.FloatField(null=True)
    text = models.TextField(null=True, db_collation="C")
    place = models.BigIntegerField(null=True)  # the order of rows with equal values
    identity = models.TextField(null=True)  # of a row of a file: equal rows have the same identity
    job = models.TextField(null=True)
    name = models.TextField(null=True)
    singleton_key = models.TextField(null=True)
    group_key = models.TextField(null=True)
    priority = models.IntegerField(null=True)
    tags = ListField(models.TextField(), null=True)
    data = models.TextField(null=True)
    delay = models.FloatField(null=True)
    start_after = models.DateTimeField(null=True)
    staged_at = models.DateTimeField(db_default=StatementTimestamp(), editable=False)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        verbose_name = _("staged job")
        verbose_name_plural = _("staged jobs")
        default_permissions: ClassVar = []

    def __str__(self) -> str:
        return f"{self.write} {self.partition}/{self.attempt} {self.row}"
