"""Show in the terminal how a shop ships orders in strict order per customer.

python -m example_project.play           takes about twelve seconds, on a server that is removed afterwards
python -m example_project.play --quick   without pauses
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .postgres import PostgresError, throwaway
from .screen import BOLD, DIM, GREEN, PALETTE, RED, YELLOW, Screen

if TYPE_CHECKING:
    from django_jobqueue.models import Job
    from django_jobqueue.services import Failure

    from .shop.models import Customer, Order

QUEUES = ("orders", "emails", "stock-report")
CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan")
ITEMS = ("tea", "a kettle", "two cups", "honey")
DETAILS = {("Ben", 2): {"card": "expired"}, ("Cleo", 3): {"address": "unknown"}}
WORKERS = 3
STUCK_AFTER_SECONDS = 60


class PlayError(Exception):
    """The play did not reach the expected state."""


class Board:
    """Shows what the workers do: a line for each event, and a board with the orders of each customer."""

    MARKS = {"waiting": "·", "running": "▸", "retry": "↻", "shipped": "✔", "failed": "✘", "skipped": "-"}
    COLOURS = {"running": BOLD, "retry": YELLOW, "shipped": GREEN, "failed": RED}

    def __init__(self, screen: Screen, orders: list[Order], pace: float, stop: threading.Event) -> None:
        self.screen, self.pace, self.stop = screen, pace, stop
        self.orders = {order.pk: order for order in orders}
        self.marks = dict.fromkeys(self.orders, "waiting")
        self.begun = time.monotonic()
        self.started_in: dict[str, list[int]] = defaultdict(
            list
        )  # by customer: the numbers of the orders, as they were started

    def started(self, worker: str, job: Job) -> None:
        if job.name == "ship_order":
            order = self.order_of(job)
            if order.number not in self.started_in[order.customer.name]:
                self.started_in[order.customer.name].append(order.number)
            self.mark(order.pk, "running")
        self.stop.wait(self.pace * random.uniform(0.6, 1.4) * (1 if job.name == "ship_order" else 0.2))

    def completed(self, worker: str, job: Job) -> None:
        if job.name == "ship_order":
            order = self.order_of(job)
            self.tell(worker, order, self.screen.paint("shipped", GREEN))
            self.mark(order.pk, "shipped")
        elif job.name == "send_email":
            data: Any = job.data
            self.line(worker, self.screen.paint(f"  sent a mail to {data['to']}: {data['text']}", DIM))
        else:
            self.line(worker, self.screen.paint("  made the stock report", DIM))

    def failed(self, worker: str, job: Job, failure: Failure, error: Exception) -> None:
        if job.name != "ship_order":
            raise PlayError(f"{job.name} failed: {error}")
        order = self.order_of(job)
        if failure.will_retry:
            self.tell(worker, order, self.screen.paint("failed; retried in one second", YELLOW))
            self.mark(order.pk, "retry")
        else:
            self.tell(
                worker, order, self.screen.paint(f"FAILED for good and blocks {order.customer}'s key: {error}", RED)
            )
            self.mark(order.pk, "failed")

    def order_of(self, job: Job) -> Order:
        data: Any = job.data
        return self.orders[data["order_id"]]

    def tell(self, who: str, order: Order, what: str) -> None:
        customer = self.painted(order.customer)
        self.line(who, f"{customer} #{order.number} {order.item:<9} {what}")

    def line(self, who: str, text: str) -> None:
        self.screen.say(f"  {time.monotonic() - self.begun:5.1f}s  {who:<9} {text}")

    def mark(self, order: int, mark: str) -> None:
        self.marks[order] = mark
        self.show()

    def show(self) -> None:
        lanes: dict[Customer, list[str]] = defaultdict(list)
        for pk, order in self.orders.items():
            mark = self.marks[pk]
            text = f"{self.MARKS[mark]}{order.number}"
            lanes[order.customer].append(self.screen.paint(text, self.COLOURS.get(mark, DIM)))
        self.screen.board(["", *(f"  {self.painted(customer)}  {'  '.join(lane)}" for customer, lane in lanes.items())])

    def hide(self) -> None:
        self.screen.board([])

    def painted(self, customer: Customer) -> str:
        return self.screen.paint(f"{customer.name:<4}", PALETTE[CUSTOMERS.index(customer.name)])


class Play:
    def __init__(self, screen: Screen, seconds: float) -> None:
        self.screen = screen
        self.pace = seconds * 0.055  # seconds per order; about ten orders run one after another
        self.pause = seconds * 0.08  # time to read a step
        self.stop = threading.Event()

    def run(self) -> None:
        from .watching import running

        self.screen.title(
            "1. Four customers place four orders each. An order and its job are stored in one transaction."
        )
        board = Board(self.screen, self.place_orders(), self.pace, self.stop)
        self.breathe()
        self.screen.title(f"2. {WORKERS} workers start. Only orders of the same customer wait for each other.")
        board.begun = time.monotonic()
        board.show()
        with running(WORKERS, QUEUES, board):
            self.wait(nothing_moves)
            board.hide()
            self.explain()
            self.breathe()
            self.decide(board)
            self.wait(nothing_moves)
            board.hide()
        self.screen.title("5. The result.")
        self.table()
        check_order(self.screen, board.started_in)

    def place_orders(self) -> list[Order]:
        from django.db import transaction

        from django_jobqueue import services

        from .shop.jobs import stock_report
        from .shop.models import Customer
        from .shop.orders import place_order

        customers = [Customer.objects.create(name=name) for name in CUSTOMERS]
        orders = []
        for item in ITEMS:
            for customer in customers:
                details = DETAILS.get((customer.name, ITEMS.index(item) + 1), {})
                orders.append(place_order(customer, item, **details))
        waiting = services.stats("orders").pending
        with transaction.atomic():
            place_order(customers[0], "a teapot")
            transaction.set_rollback(True)
        after = services.stats("orders").pending
        self.screen.say(f"  {waiting} jobs wait. One more order was placed and rolled back: still {after} jobs.")
        first, second = (stock_report.send() for _ in range(2))
        self.screen.shell("stock_report.send()  # the policy of this queue is exclusive", f"Job {first and first.pk}")
        self.screen.shell("stock_report.send()  # so a second job is refused", f"{second}")
        return orders

    def explain(self) -> None:
        from django_jobqueue import services
        from django_jobqueue.models import BlockedKey, Job

        self.screen.title("3. Two orders failed for good. The orders behind them wait; all other jobs are done.")
        self.screen.shell('services.blocked_keys("orders")', services.blocked_keys("orders"))
        for blocked in BlockedKey.objects.with_waiting():
            self.screen.say(
                f"    {blocked.singleton_key:<14} {blocked.waiting} waiting; error: {last_line(blocked.error)}"
            )
        behind = Job.objects.in_queue("orders").in_state("created").order_by("seq").first()
        if behind is None:
            raise PlayError("No order waits behind a failed order.")
        self.screen.shell(f"services.why({str(behind.pk)!r})", services.why(behind))
        copies = [job.source_key for job in services.list_jobs("orders-dead")]
        self.screen.say(f"  The dead-letter queue has a copy of each failed job: {', '.join(copies)}.")

    def decide(self, board: Board) -> None:
        from django.db import transaction

        from django_jobqueue import services
        from django_jobqueue.models import BlockedKey

        from .shop.models import Order

        self.screen.title("4. An operator decides. Ben gave another card: retry. Cleo moved away: skip and refund.")
        ben = BlockedKey.objects.get(singleton_key="customer-ben")
        cleo = BlockedKey.objects.get(singleton_key="customer-cleo")
        data: Any = ben.data
        new = {**data, "card": "new"}
        self.call(f'services.retry(job, data={new}, operator="olga", reason="another card")')
        board.marks[board.order_of(ben).pk] = "waiting"
        services.retry(ben, data=new, operator="olga", reason="another card")
        reason = "refunded, the address does not exist"
        self.call(f'services.skip(job, reason="{reason}", operator="olga")')
        refunded = board.order_of(cleo)
        board.marks[refunded.pk] = "skipped"
        with transaction.atomic():
            Order.objects.filter(pk=refunded.pk).update(status=Order.Status.REFUNDED)
            services.skip(cleo, reason=reason, operator="olga")
        board.show()

    def call(self, text: str) -> None:
        self.screen.say(self.screen.paint(f"  >>> {text}", BOLD))

    def table(self) -> None:
        from django_jobqueue import services

        head = ("queue", "waiting", "running", "completed", "failed", "skipped")
        self.screen.say(self.screen.paint("  {:<14}{:>9}{:>9}{:>11}{:>8}{:>9}".format(*head), BOLD))
        for name in (*QUEUES, "orders-dead"):
            stats = services.stats(name)
            row = (
                name,
                stats.pending + stats.failed,
                stats.running,
                stats.completed,
                stats["failed"],
                stats["stopped"],
            )
            self.screen.say("  {:<14}{:>9}{:>9}{:>11}{:>8}{:>9}".format(*row))
        blocked = services.blocked_keys("orders")
        self.screen.say(f"  Blocked keys: {', '.join(blocked) or 'none'}.")

    def wait(self, arrived: Callable[[], bool]) -> None:
        deadline = time.monotonic() + STUCK_AFTER_SECONDS
        while not arrived():
            if time.monotonic() > deadline:
                raise PlayError(f"Jobs are still running or waiting after {STUCK_AFTER_SECONDS} seconds.")
            self.stop.wait(0.05)

    def breathe(self) -> None:
        self.stop.wait(self.pause)


def last_line(error: str) -> str:
    return error.strip().splitlines()[-1].rpartition("ShopError: ")[2]


def nothing_moves() -> bool:
    """Whether no job runs, can be fetched or waits for its time. One statement reads all three."""
    from django_jobqueue.models import Job

    moving = Job.objects.fetchable() | Job.objects.running() | Job.objects.held_until()
    return not moving.exclude(queue="orders-dead").exists()


def check_order(screen: Screen, started_in: dict[str, list[int]]) -> None:
    for name in CUSTOMERS:
        numbers = started_in[name]
        screen.say(f"  {name:<4} started {' '.join(map(str, numbers))}")
        if numbers != sorted(numbers) or len(numbers) != len(ITEMS):
            raise PlayError(f"The orders of {name} were not started in order.")
    screen.say("  Every customer's orders were started in the order they were placed.")


def prepare() -> None:
    import django
    from django.core.management import call_command

    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    django.setup()
    logging.getLogger("django_jobqueue").setLevel(
        logging.CRITICAL
    )  # failures are part of the play, and shown on the board
    call_command("migrate", verbosity=0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="example_project.play", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=12, help="approximate duration; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="run without pauses")
    options = parser.parse_args(argv)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # a terminal that lacks these characters shows question marks
    screen = Screen(sys.stdout)
    screen.say("django-jobqueue: a small shop. Starting PostgreSQL …")
    try:
        with throwaway() as started:
            os.environ.update(started.env)
            prepare()
            screen.say(f"PostgreSQL {started.version} runs on {started.host}:{started.port} and is removed afterwards.")
            Play(screen, 0.2 if options.quick else options.seconds).run()
    except (PlayError, PostgresError) as error:
        screen.board([])
        print(f"The play failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.board([])
        screen.say("Stopped. The workers finished the jobs that they were running.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
