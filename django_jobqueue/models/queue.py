from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..expressions import StatementTimestamp
from ..options import QUEUE_DEFAULTS
from ..policies import LANED, ORDERED, DelayedHead, OnExhausted, QueuePolicy
from ..querysets import QueueQuerySet
from ..text import MAX_QUEUE_NAME


class Queue(models.Model):
    """A named list of jobs with one policy and the defaults that its jobs inherit."""

    name = models.CharField(_("name"), max_length=MAX_QUEUE_NAME, primary_key=True, db_collation="C")
    policy = models.CharField(_("policy"), max_length=20, choices=QueuePolicy, db_default=QueuePolicy.STANDARD)
    partition = models.BooleanField(_("own partition"), db_default=False)
    description = models.CharField(_("description"), max_length=500, blank=True, db_default="")

    retry_limit = models.PositiveIntegerField(
        _("retry limit"), null=True, blank=True, db_default=QUEUE_DEFAULTS["retry_limit"]
    )
    retry_delay = models.PositiveIntegerField(_("retry delay (s)"), db_default=QUEUE_DEFAULTS["retry_delay"])
    retry_backoff = models.BooleanField(_("retry backoff"), db_default=QUEUE_DEFAULTS["retry_backoff"])
    retry_delay_max = models.PositiveIntegerField(_("longest retry delay (s)"), null=True, blank=True)
    expire_in_seconds = models.PositiveIntegerField(_("expires in (s)"), db_default=QUEUE_DEFAULTS["expire_in_seconds"])
    heartbeat_seconds = models.PositiveIntegerField(_("heartbeat (s)"), null=True, blank=True)
    retention_seconds = models.PositiveIntegerField(
        _("keep waiting jobs (s)"), db_default=QUEUE_DEFAULTS["retention_seconds"]
    )
    delete_after_seconds = models.PositiveIntegerField(
        _("keep finished jobs (s)"), db_default=QUEUE_DEFAULTS["delete_after_seconds"]
    )
    delete_failed_after_seconds = models.PositiveIntegerField(
        _("keep failed jobs (s)"), db_default=QUEUE_DEFAULTS["delete_failed_after_seconds"]
    )

    dead_letter = models.ForeignKey(
        "self",
        verbose_name=_("dead-letter queue"),
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        db_constraint=False,  # a missing dead-letter queue must not prevent that a job fails
        related_name="+",
    )
    warning_queue_size = models.PositiveIntegerField(_("backlog warning"), null=True, blank=True)
    delayed_head = models.CharField(_("delayed head"), max_length=5, choices=DelayedHead, db_default=DelayedHead.PASS)
    on_exhausted = models.CharField(_("on exhausted"), max_length=5, choices=OnExhausted, db_default=OnExhausted.BLOCK)

    paused_at = models.DateTimeField(_("paused at"), null=True, blank=True, editable=False)
    from_code = models.BooleanField(_("declared in settings"), db_default=False, editable=False)
    created_at = models.DateTimeField(_("created at"), db_default=StatementTimestamp(), editable=False)
    updated_at = models.DateTimeField(_("updated at"), db_default=StatementTimestamp(), editable=False)

    objects = QueueQuerySet.as_manager()

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["name"]
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        permissions: ClassVar = [("pause_queue", "Can pause and resume queues")]
        constraints: ClassVar = [
            models.CheckConstraint(condition=~Q(name=""), name="jobqueue_queue_has_a_name"),
            models.CheckConstraint(
                condition=Q(policy__in=sorted(QueuePolicy.values)), name="jobqueue_queue_policy_is_known"
            ),
            models.CheckConstraint(
                condition=Q(heartbeat_seconds=None) | Q(heartbeat_seconds__gte=10),
                name="jobqueue_queue_heartbeat_at_least_10",
            ),
            models.CheckConstraint(
                condition=Q(expire_in_seconds__gte=1), name="jobqueue_queue_expires_after_1_or_more"
            ),
            models.CheckConstraint(condition=Q(retention_seconds__gte=1), name="jobqueue_queue_retains_1_or_more"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_ordered(self) -> bool:
        return self.policy == ORDERED

    @property
    def has_lanes(self) -> bool:
        return self.policy in LANED

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None
