"""The pages of django_jobqueue in Django's admin, one module per model. They change jobs and queues only by verbs."""

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
]
