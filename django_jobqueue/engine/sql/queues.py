"""The partition of a queue."""

from __future__ import annotations

TABLE_EXISTS = "SELECT to_regclass(%s)"
DROP_PARTITION = "DROP TABLE {table}"
