"""Rows that Spark hands to Python."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row


def as_dict(row: Row) -> dict[str, Any]:
    """With times in UTC: Spark gives them without a zone, in the one of this process."""
    found = row.asDict()
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in found.items()}
