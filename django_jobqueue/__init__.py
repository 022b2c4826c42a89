"""Background jobs on PostgreSQL for Django, in strict order per key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .handlers import CancelJob, FailForGood, JobContext, RetryLater, Snooze, job

__all__ = ["CancelJob", "FailForGood", "JobContext", "RetryLater", "Snooze", "job"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the names that handlers need on first use, because Django imports this package before it is set up."""
    if name in __all__:
        from . import handlers

        return getattr(handlers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
