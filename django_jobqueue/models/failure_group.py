from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from .job import Job


class FailureGroup(Job):
    """Jobs that failed in the same place in the code; the row is the latest of them."""

    class Meta:
        app_label = "jobqueue"
        proxy = True
        verbose_name = _("failure")
        verbose_name_plural = _("failures")

    def __str__(self) -> str:
        return self.fingerprint
