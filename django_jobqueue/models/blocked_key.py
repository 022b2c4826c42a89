from __future__ import annotations

from typing import ClassVar

from django.utils.translation import gettext_lazy as _

from ..querysets import BlockedKeyManager
from .job import Job


class BlockedKey(Job):
    """A key that is blocked by a job that failed for good; the row is that job."""

    objects = BlockedKeyManager()  # type: ignore[assignment,misc]

    class Meta:
        app_label = "jobqueue"
        proxy = True
        verbose_name = _("blocked key")
        verbose_name_plural = _("blocked keys")
        ordering: ClassVar = ["finalized_at", "seq"]

    def __str__(self) -> str:
        return f"{self.queue_id} {self.singleton_key}"
