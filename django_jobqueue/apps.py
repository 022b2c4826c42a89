from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class JobQueueConfig(AppConfig):
    name = "django_jobqueue"
    label = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, runserver

        checks.register()
        if runserver.wants_worker():
            runserver.start_worker()
        post_migrate.connect(_declare, sender=self, dispatch_uid="jobqueue_declare")


def _declare(using: str, **kwargs: Any) -> None:
    """Create the queues and schedules declared in settings, after ``migrate``."""
    from .services.queues import sync_declared
    from .services.schedules import sync_declared_schedules

    sync_declared(using=using)
    sync_declared_schedules(using=using)
