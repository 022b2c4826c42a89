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
LANED = ONE_RUNNING | {ORDERED}  # whose jobs of one key wait for each other


class DelayedHead(models.TextChoices):
    """What a job that is not yet due does to the jobs of its key behind it."""

    PASS = "pass", _("they pass it")
    BLOCK = "block", _("they wait for it")


class OnExhausted(models.TextChoices):
    """What becomes of an ordered key whose job has used up its attempts."""

    BLOCK = "block", _("the key waits for an operator")
    SKIP = "skip", _("the key goes on")


def blocks_lane(policy: str) -> frozenset[JobState]:
    """The states in which a job holds its lane against all others."""
    return BLOCKING if policy == ORDERED else RUNNING
