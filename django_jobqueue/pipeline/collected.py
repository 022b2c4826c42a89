"""Rows of Spark as Python values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row


def as_dict(row: Row) -> dict[str, Any]:
    """A row with its times in UTC: Spark returns them without a zone, in the zone of this process."""
    values = row.asDict()
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in values.items()}
