"""Signals of jobs, keys and queues. Receivers run in the process that changed them, after the commit."""

from django.dispatch import Signal

job_sent = Signal()  # ids: list[UUID], queue: str, using: str
job_started = Signal()  # job: Job; in the handler's thread, before the handler
# job: Job, ending: "completed", "failed", "stopped" or "snoozed", seconds: float, error: the exception or None,
# failure: Failure or None. Sent in the loop of the worker, when the end is recorded, so receivers must be short.
job_finished = Signal()
key_blocked = Signal()  # queue: str, key: str, id: UUID of the job that blocks it
key_released = Signal()  # queue: str, key: str; by retry, skip or delete
queue_backlog = Signal()  # queue: Queue, waiting: int; more jobs wait than its warning_queue_size
