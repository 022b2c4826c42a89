from __future__ import annotations

from django.test import TestCase

from django_jobqueue.testing import race

from .suite import ShopTests


class PlainTests(ShopTests, TestCase):
    """Inside the transaction that Django's TestCase rolls back."""

    def test_what_needs_commits_is_refused_with_a_word(self) -> None:
        with self.assertRaisesRegex(AssertionError, "TransactionTestCase"):
            race(2, lambda: None)
        with self.assertRaisesRegex(AssertionError, "TransactionTestCase"), self.jobqueue.mode("real"):
            pass


del ShopTests  # else it would be collected here, too
