from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.translation import gettext_lazy as _

try:
    import psycopg  # noqa: F401
except ImportError as error:  # Django would use psycopg2, or say only that it found neither
    raise ImproperlyConfigured(
        "django_jobqueue needs psycopg 3, which cannot be imported: pip install 'psycopg[binary]', "
        f"or install libpq, the client library of PostgreSQL. ({str(error).splitlines()[0]})"
    ) from error


class JobQueueConfig(AppConfig):
    name = "django_jobqueue"
    label = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, log_texts, runserver

        checks.register()
        log_texts.hide_secrets()
        pre_migrate.connect(_prepare, sender=self, dispatch_uid="jobqueue_prepare")
        if runserver.wants_worker():
            runserver.start_worker()
        post_migrate.connect(_declare, sender=self, dispatch_uid="jobqueue_declare")

    def create_declared_queues(self, using: str, *, in_migration: bool = False) -> None:
        """Create the declared queues that are missing in this database, so that data migrations can send to them."""
        from .services.queues import create_declared

        create_declared(using=using, in_migration=in_migration)


def _prepare(app_config: JobQueueConfig, using: str, **kwargs: Any) -> None:
    """Before ``migrate``: create what must exist before data migrations, or because there are no migrations."""
    from . import syncdb
    from .database_errors import migrating

    migrating.aliases.add(using)
    if not syncdb.is_migrated():
        syncdb.create_tables(using)
    app_config.create_declared_queues(using)


def _declare(using: str, **kwargs: Any) -> None:
    """Create the queues and schedules declared in settings, after ``migrate``."""
    from .database_errors import migrating
    from .services.queues import sync_declared
    from .services.schedules import sync_declared_schedules

    migrating.aliases.discard(using)
    sync_declared(using=using)
    sync_declared_schedules(using=using)
