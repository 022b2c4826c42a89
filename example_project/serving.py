"""The shop goes on after the demo's play: the admin on a port of its own, workers, and customers who keep ordering."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from .screen import BOLD, Screen

HOST, PORT = "127.0.0.1", 8000
NAME = PASSWORD = "demo"
EVERY_SECONDS = 0.7  # about, between two orders
WORKERS = 2
TROUBLE = 0.06  # the share of orders that a person must look at


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """The terminal belongs to the demo."""


@contextmanager
def serving() -> Iterator[str]:
    """The admin, on its usual port or, if that is taken, on a free one; its address."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.wsgi import get_wsgi_application

    application = StaticFilesHandler(get_wsgi_application())
    try:
        server = make_server(HOST, PORT, application, server_class=_Server, handler_class=_Quiet)
    except OSError:
        server = make_server(HOST, 0, application, server_class=_Server, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, name="admin", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/admin/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def customers(stop: threading.Event) -> Iterator[None]:
    """Who keep ordering, until the demo ends."""
    thread = threading.Thread(target=_order_on, args=[stop], name="customers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _order_on(stop: threading.Event) -> None:
    from django.db import connections

    from .demo import ITEMS
    from .shop.models import Customer
    from .shop.orders import place_order

    try:
        while not stop.wait(random.expovariate(1 / EVERY_SECONDS)):
            name = f"Customer {random.randint(1, 40)}"
            customer, _ = Customer.objects.get_or_create(name=name)
            trouble = {"card": "expired"} if random.random() < TROUBLE else {}
            place_order(customer, random.choice(ITEMS), **trouble)
    finally:
        connections.close_all()


def serve(screen: Screen, queues: tuple[str, ...]) -> None:
    """Until somebody presses Ctrl-C."""
    from django.contrib.auth.models import User

    from django_jobqueue.worker import work

    if not User.objects.filter(username=NAME).exists():
        User.objects.create_superuser(NAME, password=PASSWORD)
    stop = threading.Event()
    with ExitStack() as stack:
        for number in range(1, WORKERS + 1):
            stack.enter_context(work(queues, concurrency=4, name=f"worker-{number}"))
        stack.enter_context(customers(stop))
        address = stack.enter_context(serving())
        screen.title("6. The shop goes on, and you are its operator.")
        screen.say(f"  {screen.paint(address, BOLD)}  (log in as {NAME}, password {PASSWORD})")
        screen.say("  Now and then a card has expired: find the blocked keys, and decide. Ctrl-C ends everything.")
        stop.wait()
