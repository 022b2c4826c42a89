"""The pages of django_jobqueue in Django's admin, one module per model. They change jobs and queues only by verbs."""

from django.apps import apps
from django.contrib.admin import AdminSite, site

from .blocked_keys import BlockedKeyAdmin
from .failures import FailureAdmin
from .health import HealthAdmin
from .jobs import JobAdmin
from .operations import OperationAdmin
from .queues import QueueAdmin
from .reports import ReportAdmin
from .schedules import ScheduleAdmin
from .workers import WorkerAdmin

__all__ = [
    "BlockedKeyAdmin",
    "FailureAdmin",
    "HealthAdmin",
    "JobAdmin",
    "OperationAdmin",
    "QueueAdmin",
    "ReportAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
    "register_pages",
]


def register_pages(to: AdminSite) -> None:
    """Register all these pages with an admin site of the project, except those that it has already."""
    for model in apps.get_app_config("jobqueue").get_models():
        if site.is_registered(model) and not to.is_registered(model):
            to.register(model, type(site.get_model_admin(model)))
