"""From which queue a worker claims next."""

from __future__ import annotations

from enum import StrEnum


class QueueOrder(StrEnum):
    """What decides it if several queues have fetchable jobs."""

    FAIR = "fair"  # the queues in turn
    STRICT = "strict"  # the order given: a later queue only while the earlier ones have no fetchable jobs
    WEIGHTED = "weighted"  # in proportion to the numbers given
