"""A queue's own part of the job table."""

from __future__ import annotations

TABLE_EXISTS = "SELECT to_regclass(%s)"
DROP_PARTITION = "DROP TABLE {table}"
