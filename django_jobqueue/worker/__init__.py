"""Workers: processes that fetch jobs and run their handlers."""

from .local import LocalWorker, work
from .options import WorkerOptions

__all__ = ["LocalWorker", "WorkerOptions", "work"]
