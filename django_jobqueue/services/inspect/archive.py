"""Which jobs an archive run takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ...engine import sql
from ...engine.databases import rows


def archivable_condition() -> str:
    """The SQL condition for jobs that an archive run takes, for processes that do not load Django."""
    return sql.inspect.ARCHIVABLE


def count_archivable(before: datetime, queues: Sequence[str] = (), *, using: str) -> int:
    """How many jobs that ended before that moment an archive run would take; of these queues, or of all queues."""
    statement = sql.inspect.COUNT_ARCHIVABLE.format(queues=sql.inspect.OF_QUEUES if queues else "")
    return int(rows(using, statement, [before, *([list(queues)] if queues else [])])[0][0])
