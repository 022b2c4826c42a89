"""For tests of projects that send jobs: run jobs, wait for them, and assert what was sent."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .factories import JobFactory, QueueFactory
    from .fifo import assert_fifo
    from .kit import JobQueueKit, perform
    from .mixin import JobQueueTestMixin
    from .racing import race

__all__ = ["JobFactory", "JobQueueKit", "JobQueueTestMixin", "QueueFactory", "assert_fifo", "perform", "race"]
_PLACES = {
    "JobFactory": "factories",
    "JobQueueKit": "kit",
    "JobQueueTestMixin": "mixin",
    "QueueFactory": "factories",
    "assert_fifo": "fifo",
    "perform": "kit",
    "race": "racing",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: pytest imports this package, for its plugin, before Django is set up."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)
