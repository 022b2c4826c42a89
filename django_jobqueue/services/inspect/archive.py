"""Which jobs an archive takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ...engine import sql
from ...engine.databases import rows


def archivable_condition() -> str:
    """The condition on jobs by which an archive reads them, for a process in which Django is not loaded."""
    return sql.inspect.ARCHIVABLE


def count_archivable(before: datetime, queues: Sequence[str] = (), *, using: str) -> int:
    """How many jobs of these queues or of all an archive would take that ended before that moment."""
    statement = sql.inspect.COUNT_ARCHIVABLE.format(queues=sql.inspect.OF_QUEUES if queues else "")
    return int(rows(using, statement, [before, *([list(queues)] if queues else [])])[0][0])
