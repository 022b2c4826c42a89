"""What a schedule does with slots that it missed."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class CatchUp(models.TextChoices):
    """What to do with the slots that were due while no scheduler ran."""

    NONE = "none", _("skip them")
    LAST = "last", _("send the latest")
    ALL = "all", _("send them all")
