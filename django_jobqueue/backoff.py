"""How long a job waits before its next attempt."""

from __future__ import annotations

import random as _random
from collections.abc import Callable

MAX_EXPONENT = 16
# A date after the year 9999 can be stored by PostgreSQL, but Python cannot read it back.
LONGEST_SECONDS = 1_000 * 365 * 86_400


def retry_delay_seconds(
    count: int,
    *,
    delay: int,
    backoff: bool,
    maximum: int | None,
    random: Callable[[], float] = _random.random,
) -> float:
    """Seconds to wait before retry number ``count`` (1 is the first retry).

    With backoff, a delay of 0 counts as 1; ``maximum`` is used only with backoff.
    """
    if not backoff:
        return float(delay)
    half: float = 2 ** min(MAX_EXPONENT, count) / 2
    seconds = (delay or 1) * (half + half * random())
    return min(seconds, LONGEST_SECONDS if maximum is None else maximum)
