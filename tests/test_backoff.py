from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from django_jobqueue.backoff import LONGEST_SECONDS, retry_delay_seconds

NEARLY_ONE = 1 - 2**-40


def test_without_backoff_every_retry_waits_the_delay():  # R099 R100
    waits = [retry_delay_seconds(count, delay=7, backoff=False, maximum=None) for count in range(1, 30)]

    assert waits == [7.0] * 29


def test_without_delay_and_backoff_a_retry_is_due_at_once():  # R099
    assert retry_delay_seconds(1, delay=0, backoff=False, maximum=None) == 0


def test_backoff_without_a_delay_starts_from_one_second():  # R101
    assert retry_delay_seconds(1, delay=0, backoff=True, maximum=None, random=lambda: 0.0) == 1
    assert retry_delay_seconds(1, delay=1, backoff=True, maximum=None, random=lambda: 0.0) == 1


def test_backoff_doubles_with_every_retry():  # R102
    waits = [
        retry_delay_seconds(count, delay=3, backoff=True, maximum=None, random=lambda: 0.0) for count in range(1, 6)
    ]

    assert waits == [3, 6, 12, 24, 48]


def test_jitter_spreads_a_wait_between_half_and_all_of_its_power():  # R102
    def wait(draw):
        return retry_delay_seconds(4, delay=1, backoff=True, maximum=None, random=lambda: draw)

    assert (wait(0.0), wait(0.5)) == (8, 12)
    assert 15.9 < wait(NEARLY_ONE) < 16


@given(
    count=st.integers(1, 2**31 - 1),
    delay=st.integers(1, 400_000),
    maximum=st.none() | st.integers(1, 2**31 - 1),
    draw=st.floats(0, NEARLY_ONE),
)
def test_backoff_is_exactly_the_formula(count, delay, maximum, draw):  # R103
    power = 2 ** min(16, count)
    formula = delay * (power / 2 + power / 2 * draw)
    expected = formula if maximum is None else min(maximum, formula)

    wait = retry_delay_seconds(count, delay=delay, backoff=True, maximum=maximum, random=lambda: draw)

    assert wait == expected


def test_the_exponent_stops_at_16():  # R104
    def wait(count):
        return retry_delay_seconds(count, delay=1, backoff=True, maximum=None, random=lambda: 0.0)

    assert wait(15) == 2**14
    assert wait(16) == wait(17) == wait(10**9) == 2**15


def test_the_maximum_bounds_a_wait_with_backoff():  # R105
    assert retry_delay_seconds(10, delay=60, backoff=True, maximum=300) == 300


def test_the_maximum_is_not_used_without_backoff():  # R105
    assert retry_delay_seconds(10, delay=60, backoff=False, maximum=5) == 60


def test_without_a_maximum_waits_are_not_bounded():  # R105
    wait = retry_delay_seconds(16, delay=86_400, backoff=True, maximum=None, random=lambda: 0.0)

    assert wait == 86_400 * 2**15


def test_no_wait_ends_after_the_last_year_that_python_knows():
    wait = retry_delay_seconds(16, delay=2**31 - 1, backoff=True, maximum=None)

    assert wait == LONGEST_SECONDS


def test_jitter_comes_from_the_random_module_by_default():
    random.seed(5)
    waits = {retry_delay_seconds(8, delay=1, backoff=True, maximum=None) for _ in range(100)}

    assert len(waits) > 90
    assert all(128 <= wait < 256 for wait in waits)
