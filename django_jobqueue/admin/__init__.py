"""The operator's screens in Django's admin, one module each. They look, and they call verbs; they never write."""

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
