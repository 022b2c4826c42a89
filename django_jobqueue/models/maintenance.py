from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class Maintenance(models.Model):
    """The lease of the process that runs maintenance, and the report of the last pass: one row.

    It is a lease and not a session lock, because behind a transaction pooler no client has a session of its own.
    """

    ONLY = 1

    id = models.SmallIntegerField(primary_key=True, default=ONLY, editable=False)
    holder = models.UUIDField(_("holder of the lease"), null=True, blank=True, editable=False)
    lease_until = models.DateTimeField(_("leased until"), null=True, blank=True, editable=False)
    began_at = models.DateTimeField(_("last pass began at"), null=True, blank=True, editable=False)
    ended_at = models.DateTimeField(_("last pass ended at"), null=True, blank=True, editable=False)
    counted_until = models.DateTimeField(_("minutes counted until"), null=True, blank=True, editable=False)
    alerts_at = models.DateTimeField(_("last check for alerts began at"), null=True, blank=True, editable=False)
    # The timeline of the server and when it was first seen. It changes when a standby is promoted.
    timeline = models.CharField(_("timeline"), max_length=8, blank=True, db_default="", editable=False)
    timeline_at = models.DateTimeField(_("timeline since"), null=True, blank=True, editable=False)
    places = models.JSONField(_("positions of long sweeps"), default=dict, blank=True, editable=False)
    report = models.JSONField(_("report of the last pass"), default=dict, blank=True, editable=False)

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        verbose_name = _("maintenance")
        verbose_name_plural = _("health")  # what the admin shows there
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(id=1), name="jobqueue_maintenance_is_one_row"),
        ]

    def __str__(self) -> str:
        return "maintenance"
