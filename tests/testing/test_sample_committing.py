from __future__ import annotations

from django.test import TransactionTestCase

from django_jobqueue import services

from .shop.jobs import remind, ship
from .suite import ShopTests


class CommittingTests(ShopTests, TransactionTestCase):
    """With commits, so that other connections see what a test does."""

    def test_a_real_worker_runs_jobs(self) -> None:
        with self.jobqueue.mode("real"):
            jobs = [ship.send(order_id=n % 3, step=str(n)) for n in range(12)]
            for job in jobs:
                self.jobqueue.wait_for(job)
            bad = remind.using(retry_limit=0).send(user_id=-1)
            self.jobqueue.wait_for(bad, "failed")
        self.jobqueue.assert_fifo("shop-orders")

    def test_a_race(self) -> None:
        remind.send(user_id=7)

        claims = self.jobqueue.race(2, lambda: services.fetch("shop-mails"))

        self.assertEqual(sorted(map(len, claims)), [0, 1])


del ShopTests
