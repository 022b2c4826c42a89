import pytest
from django.db import connection
from django.test import TestCase, TransactionTestCase

from books.jobs import confirm, index_books, ship
from books.models import Book, Order
from django_jobqueue import services
from django_jobqueue.testing import JobQueueTestMixin


class BuyTests(JobQueueTestMixin, TestCase):
    def buy(self, url="/buy/", customer="ada", title="Emma"):
        return self.client.post(url, {"customer": customer, "title": title})

    def test_an_order_is_shipped_and_confirmed(self):
        order = self.buy().json()["order"]

        self.jobqueue.assert_sent(ship, data={"customer": "ada", "order": order}, singleton_key="ada")
        self.jobqueue.assert_sent(confirm, data={"order": order})
        self.jobqueue.drain("orders")
        self.assertEqual(Order.objects.get().state, "shipped")

    def test_the_key_is_found_however_the_arguments_are_given(self):
        orders = [Order.objects.create(customer="ada", title="Emma").pk for _ in range(3)]

        ship.send("ada", orders[0])
        ship.send("ada", order=orders[1], express=True)
        ship.send(order=orders[2], customer="ada")

        self.assertEqual({job.singleton_key for job in self.jobqueue.sent(ship)}, {"ada"})
        self.jobqueue.drain("orders")
        self.jobqueue.assert_fifo("orders")

    def test_a_request_that_fails_sends_nothing(self):
        self.client.raise_request_exception = False

        self.assertEqual(self.buy("/buy-and-fail/").status_code, 500)

        self.jobqueue.assert_not_sent(ship)
        self.assertFalse(Order.objects.exists())

    def test_a_failed_order_blocks_its_customer_only(self):
        self.buy(title="a book that is out of print")
        self.buy()
        self.buy(customer="ben")

        self.jobqueue.drain("orders", delayed=True)

        self.assertEqual(list(Order.objects.order_by("pk").values_list("state", flat=True)), ["new", "new", "shipped"])
        self.assertEqual(services.blocked_keys("orders"), ["ada"])


class CommittedTests(JobQueueTestMixin, TransactionTestCase):
    jobqueue_mode = "real"

    def test_a_worker_ships_what_was_bought(self):
        self.client.post("/buy/", {"customer": "ada", "title": "Emma"})

        self.jobqueue.wait_for(self.jobqueue.sent(ship)[0])

        self.assertEqual(Order.objects.get().state, "shipped")


@pytest.mark.jobqueue("immediate")
def test_jobs_run_at_once(jobqueue):
    Book.objects.create(title="Persuasion")

    index_books.send()

    assert Book.objects.get(title="Persuasion").indexed


@pytest.mark.django_db
def test_the_tables_are_those_of_the_migrations():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'jobqueue_job'")
        [indexes] = cursor.fetchone()

    assert indexes > 5
    assert services.get_queue("orders").policy == "key_strict_fifo"
