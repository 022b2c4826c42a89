"""What a queue allows to wait or to run at once."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .states import BLOCKING, RUNNING, JobState


class QueuePolicy(models.TextChoices):
    STANDARD = "standard", _("standard")
    SHORT = "short", _("short: one waiting")
    SINGLETON = "singleton", _("singleton: one running")
    STATELY = "stately", _("stately: one waiting, one running")
    EXCLUSIVE = "exclusive", _("exclusive: one waiting or running")
    KEY_STRICT_FIFO = "key_strict_fifo", _("strict order per key")


POLICIES: tuple[str, ...] = tuple(QueuePolicy.values)
ALIASES = {"fifo": QueuePolicy.KEY_STRICT_FIFO}
ORDERED = QueuePolicy.KEY_STRICT_FIFO
ONE_RUNNING = frozenset({QueuePolicy.SINGLETON, QueuePolicy.STATELY})
LANED = ONE_RUNNING | {ORDERED}  # jobs with the same key wait for each other


class DelayedHead(models.TextChoices):
    """Whether later jobs of a key may run before a delayed job that was sent earlier."""

    PASS = "pass", _("later jobs pass it")
    BLOCK = "block", _("later jobs wait for it")


class OnExhausted(models.TextChoices):
    """What happens to the key of an ordered job that has used up its attempts."""

    BLOCK = "block", _("the key waits for an operator")
    SKIP = "skip", _("the next job of the key runs")


def blocks_lane(policy: str) -> frozenset[JobState]:
    """The states in which a job keeps all other jobs of its lane waiting."""
    return BLOCKING if policy == ORDERED else RUNNING
