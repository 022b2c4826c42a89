"""The counters and histograms that are kept for each queue and minute.

A histogram is a list of counts, the number of durations in each bucket. Bucket ``n`` has the durations from
``BOUNDS[n - 1]`` to below ``BOUNDS[n]`` seconds. The first bucket ends at a millisecond, each further bound is twice
the one before, and the last bucket has all durations of twelve days and more. Empty buckets at the end are left out.
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
SPAN = timedelta(minutes=10)  # minutes are also summed up to spans, which charts of more than an hour read

Histogram = Sequence[int]


def bucket_of(seconds: float) -> int:
    """The number of the bucket of a duration."""
    return bisect_right(BOUNDS, seconds)


def percentile(histogram: Histogram, share: float) -> float | None:
    """The duration in seconds below which this share of the durations lies; ``None`` if the histogram is empty.

    It is as exact as its bucket: durations are assumed to be spread evenly within a bucket. For the last bucket its
    lower bound is returned.
    """
    total = sum(histogram)
    if not total:
        return None
    rank = min(max(share, 0.0), 1.0) * total
    for bucket, (upto, number) in enumerate(zip(accumulate(histogram), histogram, strict=True)):
        if number and upto >= rank:
            low, high = _edges(bucket)
            return low + (high - low) * max(0.0, rank - (upto - number)) / number
    raise AssertionError("unreachable")


def sum_of(histogram: Histogram) -> float:
    """The approximate sum of the durations in seconds: each counts as the middle of its bucket."""
    return sum(number * sum(_edges(bucket)) / 2 for bucket, number in enumerate(histogram))


def _edges(bucket: int) -> tuple[float, float]:
    low = BOUNDS[bucket - 1] if bucket else 0.0
    return low, BOUNDS[bucket] if bucket < len(BOUNDS) else low


def merged(left: Histogram, right: Histogram) -> list[int]:
    """The sum of both histograms."""
    return [a + b for a, b in zip_longest(left, right, fillvalue=0)]
