"""PostgreSQL's own fields and indexes, for projects without ``django.contrib.postgres``.

Since Django 6.0 a check wants that app wherever one of them is used. What the app registers is used by none of ours, so
nobody should have to install it for us.
"""

from __future__ import annotations

from typing import Any

from django.contrib.postgres import fields, indexes
from django.core import checks


class _AppNotNeeded:
    def _check_postgres_installed(self, *args: Any) -> list[checks.CheckMessage]:
        return []


class ListField(_AppNotNeeded, fields.ArrayField):  # type: ignore[type-arg]
    pass


class GinIndex(_AppNotNeeded, indexes.GinIndex):
    pass


class BrinIndex(_AppNotNeeded, indexes.BrinIndex):
    pass
