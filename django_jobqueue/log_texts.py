"""How log messages write an error and a job: each in one line."""

from __future__ import annotations

import logging
from traceback import format_exception
from typing import TYPE_CHECKING

from .error_summary import first_line, summary_of
from .redaction import redacted_text
from .text import printed

if TYPE_CHECKING:
    from .models import Job

MAX_ERROR_CHARS = 300
PARTS = ("alerts", "handlers", "maintenance", "operations", "prometheus", "statistics", "worker")
LOGGERS = ("django_jobqueue", *(f"django_jobqueue.{part}" for part in PARTS))


def error_line(error: object) -> str:
    """The summary of an exception, see :func:`django_jobqueue.error_summary.summary_of`; of another value likewise.

    Sensitive values are hidden.
    """
    return one_line(redacted_text(summary_of(error)))


def error_text(error: object) -> str:
    """The whole text of an error, without sensitive values, for the fields of a log record."""
    return redacted_text(printed(error)).strip()


def one_line(text: str) -> str:
    """The first line of a text, without its full stop and without control characters."""
    first = first_line(text).removesuffix(".")
    return first if len(first) <= MAX_ERROR_CHARS else f"{first[: MAX_ERROR_CHARS - 1]}…"


class SecretFree(logging.Filter):
    """Prepares the traceback of a log record without sensitive values. Formatters of ``logging`` use it as it is."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = redacted_text("".join(format_exception(record.exc_info[1])).rstrip())
        return True


def hide_secrets() -> None:
    """Hide sensitive values in the tracebacks that our loggers write; doing it again has no effect."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_secret_free)


_secret_free = SecretFree()


def duration(seconds: float) -> str:
    """A time in the unit that people would choose, as in ``0.4 ms``, ``3.4 s``, ``2 min 5 s`` or ``3 h 20 min``."""
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def job_label(job: Job, seq: int | None = None) -> str:
    """Queue, number, handler and key of a job, as in ``orders #264 shop.ship_order key=customer-finn``.

    Of a job whose number was not read the id is shown. Nothing is read from the database.
    """
    known = job.__dict__
    number = known.get("seq") if seq is None else seq
    parts = [str(known.get("queue_id", "")), str(known.get("id", "")) if number is None else f"#{number}"]
    parts += [one_line(known["name"])] if known.get("name") else []
    parts += [f"key={one_line(known['singleton_key'])}"] if known.get("singleton_key") else []
    return " ".join(filter(None, parts))
