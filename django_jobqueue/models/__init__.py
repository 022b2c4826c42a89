"""The models: queues, jobs, schedules, workers, operations, and the records of maintenance and bulk sends."""

from .alert import Alert
from .blocked_key import BlockedKey
from .failure_group import FailureGroup
from .job import Job
from .maintenance import Maintenance
from .operation import Operation, OperationBatch
from .pending_release import PendingRelease
from .queue import Queue
from .queue_minute import QueueMinute
from .queue_span import QueueSpan
from .queue_total import QueueTotal
from .report import Report
from .schedule import Schedule, ScheduleRun
from .staged_job import JobWrite, SentRow, StagedJob
from .worker import Worker

__all__ = [
    "Alert",
    "BlockedKey",
    "FailureGroup",
    "Job",
    "JobWrite",
    "Maintenance",
    "Operation",
    "OperationBatch",
    "PendingRelease",
    "Queue",
    "QueueMinute",
    "QueueSpan",
    "QueueTotal",
    "Report",
    "Schedule",
    "ScheduleRun",
    "SentRow",
    "StagedJob",
    "Worker",
]
