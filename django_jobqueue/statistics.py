"""The counters and histograms that are kept for each queue and minute.

A histogram is a list of numbers: how many times fell into each bucket. The first bucket is below a millisecond, and
each further one reaches twice as far: bucket ``n`` holds times from ``BOUNDS[n - 1]`` to below ``BOUNDS[n]`` seconds,
the last everything longer than twelve days. Buckets at the end that are empty are left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate, zip_longest

BOUNDS = tuple(2**n / 1000 for n in range(31))  # in seconds: where each bucket but the last ends
COUNTERS = ("sent", "started", "completed", "failed", "retried")
HISTOGRAMS = ("waited", "ran")
CATCH_UP = timedelta(hours=1)  # older minutes are not counted any more

Histogram = Sequence[int]


def bucket_of(seconds: float) -> int:
    """The number of the bucket that a time falls into."""
    return bisect_right(BOUNDS, seconds)


def percentile(histogram: Histogram, share: float) -> float | None:
    """The time in seconds below which this share of the times lies, or ``None`` without any.

    As exact as its bucket: times are taken to be spread evenly within one. What lies in the last bucket is told as
    its lower end.
    """
    total = sum(histogram)
    if not total:
        return None
    wanted = min(max(share, 0.0), 1.0) * total
    for bucket, (upto, number) in enumerate(zip(accumulate(histogram), histogram, strict=True)):
        if number and upto >= wanted:
            low, high = _edges(bucket)
            return low + (high - low) * max(0.0, wanted - (upto - number)) / number
    raise AssertionError("unreachable")


def sum_of(histogram: Histogram) -> float:
    """About how many seconds the times are together: each counts as the middle of its bucket."""
    return sum(number * sum(_edges(bucket)) / 2 for bucket, number in enumerate(histogram))


def _edges(bucket: int) -> tuple[float, float]:
    low = BOUNDS[bucket - 1] if bucket else 0.0
    return low, BOUNDS[bucket] if bucket < len(BOUNDS) else low


def merged(one: Histogram, other: Histogram) -> list[int]:
    """Both histograms as one."""
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
