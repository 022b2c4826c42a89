"""Tracebacks of handlers without the frames of the worker."""

from __future__ import annotations

from types import TracebackType

# The modules that are on the stack when a handler is called.
_OURS = (
    "django_jobqueue.worker.",
    "django_jobqueue.handlers",
    "django_jobqueue.carriers",
    "django_jobqueue.sentry",
    "contextlib",
)


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler on; empty if the handler could not be called."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        trace = trace.tb_next
    return trace
