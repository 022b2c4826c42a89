"""A project's tests, written once: they are run under TestCase, TransactionTestCase and pytest."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group
from django.db.models import F

from django_jobqueue import RetryLater, services
from django_jobqueue.models import Job
from django_jobqueue.testing import JobFactory, JobQueueTestMixin, QueueFactory, perform
from tests.testing.shop.jobs import Interrupted, book, fetch_page, leave, leave_async, remind, report, ship
from tests.testing.shop.tasks import add


class ShopTests(JobQueueTestMixin):
    """What holds in every kind of test. A project would write only one of them."""

    def setUp(self) -> None:
        super().setUp()
        services.create_queue("shop-mails")
        services.create_fifo_queue("shop-orders")

    # ------------------------------------------------------------------------------------------- what was sent

    def test_what_was_sent(self) -> None:
        remind.send(user_id=7)
        remind.using(priority=5, tags=["vip"]).send(user_id=8, text="Dear")
        add.enqueue(1, b=2)

        self.jobqueue.assert_sent("shop-mails", data={"user_id": 7})
        self.jobqueue.assert_sent(remind, data={"text": "Dear"}, tags=["vip"], priority=5)
        self.jobqueue.assert_sent(add, data={"kwargs": {"b": 2}})
        self.jobqueue.assert_sent(remind, count=2)
        self.jobqueue.assert_not_sent(ship)
        self.jobqueue.assert_not_sent("shop-mails", data={"user_id": 9})

    def test_the_order_of_a_key(self) -> None:
        for step in ("pack", "send"):
            ship.send(order_id=1, step=step)
            ship.send(order_id=2, step=step)

        self.jobqueue.assert_sent_in_order([{"step": "pack"}, {"step": "send"}], ship, singleton_key="order 1")

    def test_a_difference_is_told(self) -> None:
        remind.using(tags=["vip"]).send(user_id=8)

        with self.assertRaises(AssertionError) as told:
            self.jobqueue.assert_sent("shop-mails", data={"user_id": 7, "text": "Dear"})
        text = str(told.exception)
        self.assertIn("No job was sent with queue 'shop-mails', data {'user_id': 7, 'text': 'Dear'}", text)
        self.assertIn("1. shop-mails tests.testing.shop.jobs.remind tags ['vip'] {'user_id': 8}", text)
        self.assertIn("data.user_id: expected 7, got 8", text)
        self.assertIn("data.text: expected 'Dear', is missing", text)
        with self.assertRaisesRegex(AssertionError, "Not 2 but 1 jobs were sent"):
            self.jobqueue.assert_sent(remind, count=2)
        with self.assertRaisesRegex(AssertionError, "A job was sent with handler"):
            self.jobqueue.assert_not_sent(remind)
        with self.assertRaisesRegex(AssertionError, r"1\. ≠ shop-mails .*\n +expected {'user_id': 9}"):
            self.jobqueue.assert_sent_in_order([{"user_id": 9}])

    def test_jobs_of_before_do_not_count(self) -> None:
        services.send("shop-mails", {"user_id": 1})
        with self.another_kit() as later:
            later.assert_not_sent("shop-mails")
        self.jobqueue.assert_sent("shop-mails")

    def another_kit(self) -> Any:
        return type(self.jobqueue)()

    # ------------------------------------------------------------------------------------------------ running

    def test_drain_runs_what_is_there_and_what_that_sends(self) -> None:
        ship.send(order_id=17, step="pack")

        attempts = self.jobqueue.drain()

        self.assertEqual([attempt.job.name.split(".")[-1] for attempt in attempts], ["ship", "ship"])
        self.assertEqual(list(Group.objects.order_by("pk").values_list("name", flat=True)), ["17 pack", "17 send"])
        reminder = self.jobqueue.assert_sent(remind)
        self.assertEqual((reminder.state, reminder.hold), ("created", "until"))
        self.jobqueue.assert_fifo("shop-orders")

    def test_drain_can_run_what_waits_for_its_time(self) -> None:
        later = remind.using(delay=3600).send(user_id=7)
        busy = fetch_page.send(url="busy")

        self.assertEqual(len(self.jobqueue.drain()), 1)
        self.assertEqual(self.state(busy), "retry")
        self.assertEqual(len(self.jobqueue.drain("shop-mails", delayed=True)), 6)
        self.assertEqual((self.state(later), self.state(busy)), ("completed", "failed"))

    def test_a_handler_that_fails_is_retried_and_its_key_blocked(self) -> None:
        bad = remind.send(user_id=-1)
        lost = ship.send(order_id=1, step="lose")
        behind = ship.send(order_id=1, step="pack")

        self.assertEqual(len(self.jobqueue.drain()), 4)
        self.assertEqual([self.state(job) for job in (bad, lost, behind)], ["failed", "failed", "created"])
        self.assertEqual(services.blocked_keys("shop-orders"), ["order 1"])
        with self.assertRaisesRegex(ValueError, "no user -2"):
            remind.send(user_id=-2)
            self.jobqueue.drain(reraise=True)

    def test_immediate_runs_a_job_before_send_returns(self) -> None:
        with self.jobqueue.mode("immediate"):
            sent = self.sent(user_id=7)
            self.assertEqual(Job.objects.get(pk=sent.pk).output, {"wrote": "Hello, 7"})
            ship.send(order_id=3, step="pack")
            self.assertEqual(Group.objects.count(), 2)
        waiting = remind.send(user_id=8)
        self.assertEqual(self.state(waiting), "created")
        with self.jobqueue.mode("immediate", reraise=True), self.assertRaises(ValueError):
            remind.send(user_id=-1)

    def test_perform_calls_one_handler(self) -> None:
        self.assertEqual(perform(remind, {"user_id": 7}), {"wrote": "Hello, 7"})
        self.assertEqual(self.jobqueue.perform(report, {"rows": 3}, attempt=2), 2)
        self.assertEqual(perform(fetch_page, {"url": "a"}), "A")
        self.assertEqual(perform(add, {"args": [1], "kwargs": {"b": 2}}), 3)
        with self.assertRaises(RetryLater):
            perform(fetch_page, {"url": "busy"})
        self.jobqueue.assert_not_sent()

    def test_async_handlers_contexts_and_tasks_run_too(self) -> None:
        page, rows, added = fetch_page.send(url="a"), report.send(rows=3), add.enqueue(1, 2)

        self.jobqueue.drain()

        self.assertEqual(self.jobqueue.wait_for(page).output, "A")
        self.assertEqual(
            (self.jobqueue.wait_for(rows).progress_text, self.jobqueue.wait_for(rows).output), ("3 rows", 1)
        )
        added.refresh()
        self.assertEqual(added.return_value, 3)

    def test_a_handler_that_breaks_the_transaction_breaks_only_itself(self) -> None:
        bad, good = book.using(retry_limit=0).send(name="bad"), book.send(name="good")

        self.jobqueue.drain()

        self.assertEqual((self.state(bad), self.state(good)), ("failed", "completed"))
        self.assertEqual([group.name for group in Group.objects.all()], ["good"])

    def test_so_does_one_that_is_not_atomic(self) -> None:
        first, again = (ship.send(order_id=1, step="send") for _ in range(2))  # the database refuses the second

        self.jobqueue.drain()

        self.assertEqual((self.state(first), self.state(again)), ("completed", "failed"))
        self.assertEqual(Group.objects.count(), 1)

    def test_a_handler_that_exits_fails_its_job_as_in_a_worker(self) -> None:
        exits, generator = leave.send(how="exit"), leave.send(how="generator")
        asynchronous, good = leave_async.send(), remind.send(user_id=7)

        self.jobqueue.drain()

        states = [self.state(job) for job in (exits, generator, asynchronous, good)]
        self.assertEqual(states, ["failed", "failed", "failed", "completed"])
        self.assertIn("sys.exit(3)", self.stored(exits).error)
        self.assertIn("sys.exit(3)", self.stored(asynchronous).error)
        self.assertIn("GeneratorExit", self.stored(generator).error)

    def test_what_is_meant_for_the_process_comes_through(self) -> None:
        for how, error in (("interrupt", KeyboardInterrupt), ("outcome", Interrupted)):
            leave.send(how=how)
            with self.assertRaises(error):
                self.jobqueue.drain()

    def test_wait_for_runs_it_or_says_why_not(self) -> None:
        self.assertEqual(self.jobqueue.wait_for(remind.send(user_id=7)).output, {"wrote": "Hello, 7"})
        self.assertEqual(self.jobqueue.wait_for(add.enqueue(1, 2)).output, 3)
        with self.assertRaisesRegex(AssertionError, r"(?s)is failed, not completed.*ValueError: no user -1"):
            self.jobqueue.wait_for(remind.send(user_id=-1))
        with self.assertRaisesRegex(AssertionError, "It waits until"):
            self.jobqueue.wait_for(remind.using(delay=60).send(user_id=1))

    def test_factories_make_jobs_of_every_state(self) -> None:
        failed = JobFactory(queue=QueueFactory(policy="key_strict_fifo"), state="failed", singleton_key="a")

        self.assertEqual(services.blocked_keys(failed.queue_id), ["a"])
        self.assertIsNotNone(failed.finalized_at)

    def test_jobs_out_of_order_are_noticed(self) -> None:
        for step in ("weigh", "send"):
            ship.send(order_id=5, step=step)
        self.jobqueue.drain()
        self.jobqueue.assert_fifo("shop-orders")
        first = Job.objects.filter(queue="shop-orders").order_by("seq").first()
        assert first is not None
        Job.objects.filter(pk=first.pk).update(started_at=first.finalized_at)

        last = Job.objects.filter(queue="shop-orders").order_by("-seq").first()
        assert last is not None
        # As if no other transaction of the server had been open: a claim beside an older one proves no order.
        Job.objects.filter(pk=last.pk).update(started_at=first.created_at, claim_xmin=F("sent_xid") + 1)
        with self.assertRaisesRegex(AssertionError, "which was sent first"):
            self.jobqueue.assert_fifo("shop-orders")

    def sent(self, **data: Any) -> Job:
        sent = remind.send(**data)
        assert sent is not None
        return sent

    def stored(self, job: Any) -> Job:
        return Job.objects.get(pk=job.pk)

    def state(self, job: Any) -> str:
        return str(self.stored(job).state)
