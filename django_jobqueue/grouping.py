"""How a grouped read spreads over the groups of a queue."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Grouping(models.TextChoices):
    ROUND_ROBIN = "round_robin", _("one of each group, then the second of each, and so on")
    FILL = "fill", _("all of the oldest group, then of the next")
    HEAD = "head", _("one of each group")
