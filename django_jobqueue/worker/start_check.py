"""What the database says about a worker before it starts."""

from __future__ import annotations

from difflib import get_close_matches

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, OperationalError

from .. import handlers
from ..log_texts import error_line
from ..services.queues import queue_names
from .messages import DatabaseChecked
from .options import WorkerOptions


def check_database(options: WorkerOptions) -> DatabaseChecked:
    """Whether the worker can work at all, and which of its queues do not exist."""
    try:
        existing = queue_names(using=options.using)
    except ImproperlyConfigured as error:
        return DatabaseChecked(refusal=str(error))
    except (OperationalError, InterfaceError) as error:
        return DatabaseChecked(warnings=(f"The database does not answer; waiting for it. {error}".strip(),))
    except DatabaseError as error:
        return DatabaseChecked(refusal=f"The database {options.using!r} cannot be used: {error_line(error)}.")
    served = options.queues or sorted(handlers.served(handlers.all_handlers()))
    return DatabaseChecked(warnings=tuple(_missing(name, existing) for name in served if name not in existing))


def _missing(name: str, existing: set[str]) -> str:
    close = get_close_matches(name, existing, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"The queue {name!r} does not exist yet; the worker waits until it does.{guess}"
