"""What the database says about a worker before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, OperationalError

from .. import handlers
from ..database_errors import explanation
from ..log_texts import error_line
from ..services.queues import queue_names
from .messages import DatabaseChecked
from .options import WorkerOptions
from .served_queues import queues_of_workers


def check_database(options: WorkerOptions) -> DatabaseChecked:
    """Whether the worker can work at all, and which of its queues do not exist or are left out."""
    using = options.using
    try:
        existing = queue_names(using=using)
        served = options.queues or queues_of_workers(using=using)
    except ImproperlyConfigured as error:
        return DatabaseChecked(refusal=str(error))
    except (OperationalError, InterfaceError) as error:
        text = f"The database does not answer; waiting for it. {explanation(error, using) or error}"
        return DatabaseChecked(warnings=(text.strip(),))
    except DatabaseError as error:
        text = explanation(error, using) or f"The database {using!r} cannot be used: {error_line(error)}."
        return DatabaseChecked(refusal=text)
    if options.drain and (missing := [name for name in options.queues if name not in existing]):
        text = f"There is no queue named {missing[0]!r} to drain.{_guess(missing[0], existing)}"
        return DatabaseChecked(refusal=text)
    return DatabaseChecked(warnings=tuple(_warnings(options, existing, served)))


def _warnings(options: WorkerOptions, existing: set[str], served: Iterable[str]) -> Iterator[str]:
    with_handlers = handlers.served(handlers.all_handlers())
    for name in options.queues or sorted(with_handlers - set(options.exclude)):
        if name not in existing:
            yield f"The queue {name!r} does not exist yet; the worker waits until it does.{_guess(name, existing)}"
        elif name not in served:
            yield (
                f"The queue {name!r} keeps dead letters and is not served, although a handler is declared for it; "
                f"to serve it, give --queue {name}."
            )
    for name in options.exclude:
        if name not in existing:
            yield f"--exclude-queue {name}: there is no such queue.{_guess(name, existing)}"


def _guess(name: str, existing: set[str]) -> str:
    close = get_close_matches(name, existing, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
