"""PostgreSQL's own fields and indexes, for projects without ``django.contrib.postgres``.

Since Django 6.0 a system check requires that app for models that use them. These models use nothing that the app
registers, so projects should not have to install it.
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
